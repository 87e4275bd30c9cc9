//! Embeddings and rankings by the bundled model, over HTTP.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Server, chat};

/// What transformers computes with the same files (`tools/golden_retrieval.py`).
fn golden() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weft/tests/retrieval.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn embed(server: &Server, input: &Value) -> Value {
    let (status, answer) = server.post("/v1/embeddings", &json!({"input": input}));
    assert_eq!(status, 200, "{answer}");
    answer
}

fn numbers(embedding: &Value) -> Vec<f64> {
    embedding.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn embeddings_are_near_those_of_transformers_and_the_same_in_a_batch() {
    let server = Server::start(&[]);
    let golden = golden();
    let golden = golden["texts"].as_array().unwrap();
    let texts: Vec<&Value> = golden.iter().map(|text| &text["text"]).collect();
    let batch = embed(&server, &json!(texts))["data"].clone();
    for (index, text) in golden.iter().enumerate() {
        let (ours, theirs) = (numbers(&batch[index]["embedding"]), numbers(&text["f32"]));
        let cosine: f64 = ours.iter().zip(&theirs).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.999, "{text}: {cosine}");
        let alone = embed(&server, &text["text"]);
        assert_eq!(alone["data"][0]["embedding"], batch[index]["embedding"]);
        assert_eq!(alone["usage"]["prompt_tokens"], text["tokens"].as_array().unwrap().len());
        // As tokens, which the tokenizer of this model puts nothing around.
        let tokens = embed(&server, &text["tokens"]);
        assert_eq!(tokens["data"], alone["data"]);
    }
}

/// An instruction is computed for the first query that has it, also if queries come one by one.
#[test]
fn an_instruction_stays_in_the_cache_and_texts_do_not() {
    let server = Server::start(&[]);
    let instruction = "Instruct: Given a question, find the sentence that answers it\nQuery:";
    let cached = |text: &str| {
        let answer = embed(&server, &json!(format!("{instruction}{text}")));
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(" What is on the flag?"), 0);
    let shared = cached(" How many bridges are there?");
    assert!(shared >= 16, "{shared}");
    assert_eq!(cached(" How many bridges are there?"), shared);
    // Nothing of a text without an instruction stays.
    let text = json!("A text that is embedded twice. ".repeat(20));
    for _ in 0..2 {
        let usage = embed(&server, &text)["usage"].clone();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    }
}

#[test]
fn documents_are_ranked_as_transformers_ranks_them() {
    let server = Server::start(&[]);
    let golden = golden();
    let mut cached = Vec::new();
    for ranking in golden["rankings"].as_array().unwrap().chunks(4) {
        let documents: Vec<&Value> = ranking.iter().map(|one| &one["document"]).collect();
        let body = json!({"query": golden["query"], "documents": documents,
            "instruction": ranking[0]["instruction"], "return_documents": true});
        let (status, answer) = server.post("/v1/rerank", &body);
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().unwrap();
        let score = |result: &Value| result["relevance_score"].as_f64().unwrap();
        assert!(results.is_sorted_by(|a, b| score(a) >= score(b)), "{answer}");
        for result in results {
            let index = result["index"].as_u64().unwrap() as usize;
            assert_eq!(result["document"]["text"], *documents[index]);
            let theirs = ranking[index]["f32"].as_f64().unwrap();
            assert!((score(result) - theirs).abs() < 0.01, "{result} against {theirs}");
        }
        let usage = &answer["usage"];
        let n_tokens: usize =
            ranking.iter().map(|one| one["tokens"].as_array().unwrap().len()).sum();
        assert_eq!(usage["prompt_tokens"], n_tokens);
        cached.push(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
        // A chat beside it is as it always is.
        assert_eq!(server.post("/v1/chat/completions", &chat()).0, 200);
    }
    // All documents but the first share the query, and the second request the template.
    assert!(cached[0] > 0 && cached[1] > cached[0], "{cached:?}");
}

fn command(args: &[&str], lines: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["embed", "-q", "--no-resident", "--no-cache"]).args(args);
    let pipes = || Stdio::piped();
    let mut child =
        command.stdin(pipes()).stdout(pipes()).stderr(pipes()).spawn().expect("the program");
    // It may end before it reads.
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_prints_what_the_server_returns() {
    let server = Server::start(&[]);
    let texts = ["Piranul has 49 bridges.", "A cat sleeps."];
    let served = embed(&server, &json!(texts));
    let served: Vec<&Value> = (0..2).map(|index| &served["data"][index]["embedding"]).collect();
    let printed = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (code, stdout, stderr) = command(&texts, "");
    assert_eq!(code, 0, "{stderr}");
    assert!(printed(&stdout).iter().eq(served.iter().copied()), "{stdout}");
    // The same as lines of a pipe.
    let (code, stdout, stderr) = command(&[], &format!("{}\n\n{}\n", texts[0], texts[1]));
    assert_eq!(code, 0, "{stderr}");
    assert!(printed(&stdout).iter().eq(served.iter().copied()), "{stdout}");
    let (_, stdout, _) = command(&["--dimensions", "3", texts[0]], "");
    assert_eq!(printed(&stdout)[0].as_array().unwrap().len(), 3);
    for (args, reason) in [
        (&[][..], "no text to embed"),
        (&["a", ""], "text 2 is empty"),
        (&["--dimensions", "257", "a"], "256 values"),
    ] {
        let (code, stdout, stderr) = command(args, "");
        assert_eq!((code, &*stdout), (2, ""), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
    }
}
