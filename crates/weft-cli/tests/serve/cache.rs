//! The cache of the server: turns of a conversation, chunks, and what survives a restart.

use serde_json::{Map, Value, json};

use crate::harness::{ANSWER, QUESTION, Server, chat, chat_with, document, merged, text};

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn count(answer: &Value, name: &str) -> u64 {
    answer["usage"][name].as_u64().unwrap()
}

#[test]
fn a_conversation_computes_only_what_is_new() {
    let server = Server::start(&[]);
    let mut body = chat();
    let mut kept = 0;
    for question in ["", "What is it?", "Who built it?", "And where?"] {
        if !question.is_empty() {
            let turns = body["messages"].as_array_mut().unwrap();
            turns.push(json!({"role": "user", "content": question}));
        }
        let answer = server.ask(&body);
        assert_eq!(cached(&answer), kept, "{question}");
        let report = answer["chunk_report"]["chunks"].as_array().unwrap();
        let reported: u64 = report.iter().map(|c| c["cached_tokens"].as_u64().unwrap()).sum();
        assert_eq!(reported, kept);
        let again = server.ask(&body);
        assert_eq!(cached(&again), count(&again, "prompt_tokens"), "all of it is kept now");
        let cold = server.ask(&merged(body.clone(), json!({"cache_prompt": false})));
        assert_eq!((text(&again), text(&cold)), (text(&answer), text(&answer)));
        // The end token was chosen and never run.
        kept = count(&answer, "prompt_tokens") + count(&answer, "completion_tokens") - 1;
        let turns = body["messages"].as_array_mut().unwrap();
        turns.push(json!({"role": "assistant", "content": text(&answer)}));
    }
}

#[test]
fn a_server_without_a_cache_keeps_nothing() {
    let server = Server::start(&["--no-cache"]);
    let first = server.ask(&chat());
    for _ in 0..2 {
        let again = server.ask(&chat());
        assert_eq!((cached(&again), text(&again)), (0, text(&first)));
    }
    assert_eq!(server.post("/v1/chunks/preview", &chat()).1["cached_tokens"], 0);
    let id = register(&server, "context", &document());
    server.ask(&about(&[&id], json!({})));
    server.refusal(&format!("/v1/chunks/{id}/warm"), &json!({}), 400);
    server.signal("-TERM");
    let (code, folder) = server.wait();
    assert_eq!(code, Some(0));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn choices_without_the_cache_compute_their_prompt_once() {
    let server = Server::start(&[]);
    let ask = |n: usize| {
        let before = server.metric("weft_prompt_tokens_total");
        let before_cached = server.metric("weft_cached_tokens_total");
        let more = json!({"cache_prompt": false, "n": n, "temperature": 2.0, "seed": 5,
            "max_tokens": 6, "ignore_eos": true});
        let answer = server.ask(&merged(chat(), more));
        let computed = server.metric("weft_prompt_tokens_total")
            - before
            - (server.metric("weft_cached_tokens_total") - before_cached);
        assert_eq!(cached(&answer), 0);
        (computed as u64, answer)
    };
    let (one, alone) = ask(1);
    let (eight, answer) = ask(8);
    assert_eq!((one, eight), (count(&alone, "prompt_tokens"), one), "one prompt, not eight");
    assert_eq!(text(&answer), text(&alone));
    assert_eq!(cached(&server.ask(&chat())), 0, "nothing is left of them");
}

pub fn register(server: &Server, kind: &str, words: &str) -> String {
    let (status, chunk) = server.post("/v1/chunks", &json!({"kind": kind, "text": words}));
    assert_eq!(status, 201, "{chunk}");
    chunk["id"].as_str().unwrap().to_owned()
}

pub fn about(ids: &[&str], more: Value) -> Value {
    let mut parts: Vec<Value> = ids.iter().map(|id| json!({"type": "chunk", "id": id})).collect();
    parts.push(json!({"type": "text", "text": QUESTION}));
    merged(json!({"messages": [{"role": "user", "content": parts}]}), more)
}

#[test]
fn chunks_are_registered_listed_warmed_pinned_and_deleted() {
    let server = Server::start(&[]);
    let body = json!({"kind": "context", "text": document(), "name": "ship",
        "metadata": {"from": "harbour"}});
    let (status, chunk) = server.post("/v1/chunks", &body);
    assert_eq!(status, 201);
    let id = chunk["id"].as_str().unwrap();
    assert_eq!(server.post("/v1/chunks", &body).1["id"], id, "the same text is the same chunk");
    let other = register(&server, "context", "Another document.");
    let list = server.get("/v1/chunks").1;
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    assert!(list["tiers"]["device"]["budget_bytes"].as_u64().unwrap() > 0);
    assert_eq!(server.get("/v1/chunks?kind=system").1["data"], json!([]));
    let shown = server.get(&format!("/v1/chunks/{id}")).1;
    assert_eq!((&shown["text"], &shown["name"]), (&json!(document()), &json!("ship")));
    assert!(shown["source"].is_null() && shown["last_used"].is_null());

    let asked = about(&[id], json!({}));
    let preview = server.post("/v1/chunks/preview", &asked).1;
    assert_eq!(preview["cached_tokens"], 0);
    let warmed = server.post(&format!("/v1/chunks/{id}/warm"), &json!({})).1;
    assert_eq!(warmed["tokens"], warmed["computed_tokens"]);
    let (status, _, _) = server.send("POST", &format!("/v1/chunks/{id}/warm"), &[], b"");
    assert_eq!(status, 200, "a body is not needed");
    let preview = server.post("/v1/chunks/preview", &asked).1;
    assert_eq!(preview["cached_tokens"], warmed["tokens"]);
    let answer = server.ask(&asked);
    assert_eq!((text(&answer), cached(&answer)), (ANSWER, warmed["tokens"].as_u64().unwrap()));
    let used = server.get(&format!("/v1/chunks/{id}")).1;
    assert!(used["uses"].as_u64() > shown["uses"].as_u64(), "{used}");
    assert!(used["last_used"].as_u64() >= used["created"].as_u64(), "{used}");
    let unread = server.post("/v1/chunks/preview", &about(&[&other], json!({}))).1;
    assert!(unread["estimate_ms"].as_f64().unwrap() > 0.0, "{unread}");
    let report = answer["chunk_report"]["chunks"].as_array().unwrap();
    let of_it = report.iter().find(|piece| piece["id"] == id).unwrap();
    assert_eq!((&of_it["source"], &of_it["kind"]), (&json!("device"), &json!("context")));

    let pinned = server.post(&format!("/v1/chunks/{id}/pin"), &json!({})).1;
    assert_eq!(pinned["pinned"], true);
    let unpinned = server.post(&format!("/v1/chunks/{id}/pin"), &json!({"pinned": false})).1;
    assert_eq!((&unpinned["pinned"], &unpinned["source"]), (&json!(false), &json!("device")));
    assert_eq!(server.delete(&format!("/v1/chunks/{id}")).1["deleted"], true);
    assert_eq!(server.get(&format!("/v1/chunks/{id}")).0, 404);
    server.refusal("/v1/chat/completions", &asked, 404);
    assert_eq!(server.delete("/v1/chunks").1["deleted"], 1);
    assert_eq!(server.get(&format!("/v1/chunks/{other}")).0, 404);
}

#[test]
fn chunks_in_the_wrong_place_are_refused() {
    let server = Server::start(&[]);
    let (doc, system) =
        (register(&server, "context", "A document."), register(&server, "system", "Be brief."));
    let message =
        |role: &str, parts: Value| json!({"messages": [{"role": role, "content": parts}]});
    let chunk = |id: &str| json!({"type": "chunk", "id": id});
    let question = json!({"type": "text", "text": "What?"});
    for (body, status) in [
        (message("user", json!([chunk(&system), question])), 400),
        (message("system", json!([chunk(&doc)])), 400),
        (message("assistant", json!([chunk(&doc)])), 400),
        (message("user", json!([chunk(&doc)])), 400),
        (message("user", json!([chunk("zz"), question])), 400),
        (message("user", json!([chunk("../../etc/passwd"), question])), 400),
        (message("user", json!([chunk(&"0".repeat(32)), question])), 404),
    ] {
        server.refusal("/v1/chat/completions", &body, status);
    }
    for wrong in [
        json!({"kind": "query", "text": "x"}),
        json!({"text": " "}),
        json!({"text": 1}),
        json!({"kind": "king", "text": "x"}),
        json!({"text": "x", "metadata": {"a": 1}}),
        json!({"text": "x", "metadata": {"a": "b".repeat(1024)}}),
        json!({"text": "x", "name": "b",
            "metadata": (0..32).map(|i| (i.to_string(), json!("a"))).collect::<Map<_, _>>()}),
        json!({"text": "word ".repeat(10_000)}),
    ] {
        server.refusal("/v1/chunks", &wrong, 400);
    }
    for path in
        ["/v1/chunks/zz", "/v1/chunks/..%2f..%2fetc", &format!("/v1/chunks/{}", "0".repeat(32))]
    {
        assert_eq!(server.get(path).0, 404, "{path}");
    }
    for path in ["/v1/chunks/%ff", "/v1/models/%ff"] {
        let (status, body) = server.get(path);
        assert_eq!(status, 404, "{path}");
        server.check_error(&body);
    }
    assert_eq!(server.get("/v1/chunks?kind=king").0, 400);
    let with_system = json!({"messages": [
        {"role": "system", "content": [chunk(&system)]},
        {"role": "user", "content": [chunk(&doc), question]},
    ]});
    let answer = server.ask(&with_system);
    let kinds: Vec<_> = answer["chunk_report"]["chunks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|piece| (piece["kind"].as_str().unwrap(), piece["id"].is_string()))
        .collect();
    assert_eq!(kinds, [("system", true), ("context", true), ("query", false)]);
}

#[test]
fn moved_chunks_are_reused_and_answers_verified() {
    let server = Server::start(&[]);
    let file = |name: &str| {
        let path = format!("{}/../../assets/demo/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let a = register(&server, "context", &document());
    let b = register(&server, "context", &file("nusonix"));
    let verify = |answer: &Value| {
        let (status, found) =
            server.post("/v1/chunks/verify", &json!({"completion": answer["id"]}));
        assert_eq!(status, 200, "{found}");
        found
    };
    let exact = server.ask(&about(&[&a, &b], json!({})));
    let found = verify(&exact);
    assert_eq!((&found["exact"], &found["differing_tokens"]), (&json!(true), &json!(0)));
    server.ask(&about(&[&a, &b], json!({"reuse": "isolated"})));
    let moved = server.ask(&about(&[&b, &a], json!({"reuse": "isolated"})));
    let pieces = moved["chunk_report"]["chunks"].as_array().unwrap();
    let chunks: Vec<&Value> = pieces.iter().filter(|piece| piece["id"].is_string()).collect();
    assert_eq!(chunks.len(), 2);
    assert!(chunks.iter().all(|c| c["source"] == "device" && c["reuse"] == "isolated"), "{moved}");
    let found = verify(&moved);
    assert_eq!(found["exact"], false);
    assert!(found["kl"].as_f64().unwrap() > 0.0);
    server.refusal("/v1/chunks/verify", &json!({"completion": "chatcmpl-unknown"}), 404);
}

#[test]
fn an_answer_that_fills_the_context_is_verified_too() {
    let server = Server::start(&["-c", "192"]);
    let answer = server.ask(&chat_with(json!({"ignore_eos": true, "max_tokens": 1000})));
    assert_eq!(answer["usage"]["total_tokens"], 192, "{answer}");
    let (status, found) = server.post("/v1/chunks/verify", &json!({"completion": answer["id"]}));
    assert_eq!((status, &found["exact"]), (200, &json!(true)), "{found}");
}

#[test]
fn of_several_choices_the_first_is_verified() {
    let server = Server::start(&[]);
    let answer =
        server.ask(&chat_with(json!({"n": 3, "ignore_eos": true, "max_tokens": 7, "seed": 1})));
    assert_eq!(answer["usage"]["completion_tokens"], 21, "{answer}");
    let (status, found) = server.post("/v1/chunks/verify", &json!({"completion": answer["id"]}));
    assert_eq!((status, &found["tokens"]), (200, &json!(7)), "{found}");
}

#[test]
fn what_was_warmed_survives_a_kill_at_once() {
    let server = Server::start(&[]);
    let asked = register(&server, "context", &document());
    server.ask(&about(&[&asked], json!({})));
    // Its rows are being filed behind the answer; this promises that they are.
    let (status, again) = server.post(&format!("/v1/chunks/{asked}/warm"), &json!({}));
    assert_eq!((status, &again["computed_tokens"]), (200, &json!(0)), "{again}");
    assert_eq!(again["saved"], true, "{again}");
    let warmed = register(&server, "context", "A document that is computed ahead.");
    let (status, _) = server.post(&format!("/v1/chunks/{warmed}/warm"), &json!({}));
    assert_eq!(status, 200);
    let registered = register(&server, "context", "A document that nobody used.");
    server.signal("-KILL");
    let (_, folder) = server.wait();

    let server = Server::start_in(folder, &[]);
    let source = |id: &str| server.get(&format!("/v1/chunks/{id}")).1["source"].clone();
    assert_eq!((source(&asked), source(&warmed)), (json!("disk"), json!("disk")));
    assert_eq!(server.get(&format!("/v1/chunks/{registered}")).0, 200);
}

/// Number of files of rows in a folder and the folders in it.
fn n_row_files(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_rows = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "safetensors");
    entries
        .map(|path| if path.is_dir() { n_row_files(&path) } else { usize::from(is_rows(&path)) })
        .sum()
}

/// Whether a chunk has a file, from which the next server restores it.
fn is_on_shelf(server: &Server, id: &str) -> bool {
    let shelves = std::fs::read_dir(server.folder.path().join("chunks")).unwrap();
    let file = format!("{id}.json");
    shelves.map(Result::unwrap).any(|shelf| shelf.path().join(&file).exists())
}

#[test]
fn the_last_change_of_a_chunk_is_the_one_that_survives() {
    let server = Server::start(&[]);
    let text = "A document that comes and goes.";
    let id = register(&server, "context", text);
    assert!(is_on_shelf(&server, &id));
    let path = format!("/v1/chunks/{id}");
    for _ in 0..300 {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| register(&server, "context", text));
                scope.spawn(|| server.delete(&path));
            }
        });
        assert_eq!(is_on_shelf(&server, &id), server.get(&path).0 == 200);
    }
}

#[test]
fn chunks_and_their_rows_survive_a_kill_and_an_orderly_end() {
    let server = Server::start(&[]);
    let id = register(&server, "context", &document());
    let gone = register(&server, "context", "To be deleted.");
    server.delete(&format!("/v1/chunks/{gone}"));
    let asked = about(&[&id], json!({}));
    let first = server.ask(&asked);
    // An answer does not wait for its files, and they do not wait for anything else.
    server.until("its rows are filed", || n_row_files(server.folder.path()) > 0);
    server.signal("-KILL");
    let (code, folder) = server.wait();
    assert_eq!(code, None);

    let server = Server::start_in(folder, &[]);
    assert_eq!(server.get(&format!("/v1/chunks/{id}")).1["source"], "disk");
    assert_eq!(server.get(&format!("/v1/chunks/{gone}")).0, 404);
    let again = server.ask(&asked);
    assert_eq!(text(&again), text(&first));
    let pieces = again["chunk_report"]["chunks"].as_array().unwrap();
    let of_it = pieces.iter().find(|piece| piece["id"] == id.as_str()).unwrap();
    assert_eq!((&of_it["source"], &of_it["cached_tokens"]), (&json!("disk"), &of_it["tokens"]));

    server.signal("-TERM");
    let (code, folder) = server.wait();
    assert_eq!(code, Some(0));
    let server = Server::start_in(folder, &[]);
    let third = server.ask(&asked);
    assert_eq!(cached(&third), count(&third, "prompt_tokens"), "an orderly end keeps all rows");
    assert_eq!(server.get(&format!("/v1/chunks/{id}")).1["uses"], 2);
}

#[test]
fn a_full_disk_is_reported_and_the_server_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_on_full_disk(folder, 1);
    // The file of a short text fits into a block, and its rows do not.
    let short = register(&server, "context", "A document.");
    let (status, warmed) = server.post(&format!("/v1/chunks/{short}/warm"), &json!({}));
    assert_eq!((status, &warmed["saved"]), (200, &json!(false)), "{warmed}");
    assert!(warmed["warning"].as_str().unwrap().contains("the disk is full"), "{warmed}");
    assert_eq!(server.metric("weft_disk_full"), 1.0);
    assert!(server.metric("weft_disk_write_failures_total{what=\"rows\"}") >= 1.0);

    let long = json!({"kind": "context", "text": document()});
    let (status, error) = server.post("/v1/chunks", &long);
    assert_eq!(status, 507, "{error}");
    server.check_error(&error);
    assert!(error["error"]["message"].as_str().unwrap().contains("disk is full"), "{error}");
    assert_eq!(server.metric("weft_disk_write_failures_total{what=\"chunks\"}"), 1.0);
    let listed = server.get("/v1/chunks").1;
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "what is not saved is not registered");

    server.until_logged("chunks are no longer written");
    server.until_logged("a chunk was not saved: the disk is full");
    assert_eq!(text(&server.ask(&chat())), ANSWER);
}

#[test]
fn what_is_warmed_is_said_to_be_saved() {
    let server = Server::start(&[]);
    let id = register(&server, "context", &document());
    let (status, warmed) = server.post(&format!("/v1/chunks/{id}/warm"), &json!({}));
    assert_eq!((status, &warmed["saved"]), (200, &json!(true)), "{warmed}");
    assert!(warmed.get("warning").is_none(), "{warmed}");
}
