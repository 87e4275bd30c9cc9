//! Several models behind one address, on devices that compute nothing: what clients of each dialect
//! read while a model loads, when it cannot be loaded, and when there is none of that name.

mod harness;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weft_server::{
    About, LoadFailure, LoadProgress, LoadStage, Loaded, MemoryNeed, ModelName, ModelSource,
    OpenModel, Options, Server,
};
use weft_testing::stub;

use self::harness::{get, read, send};

/// Models that load while the gate is open. One of them has files that are damaged.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, is_open: bool) {
        *self.is_open.lock().unwrap() = is_open;
        self.changed.notify_all();
    }
}

struct Source(Arc<Gate>);

struct Opened {
    gate: Arc<Gate>,
    name: String,
    progress: LoadProgress,
}

impl ModelSource for Source {
    fn open(
        &self,
        model: &ModelName,
        progress: &LoadProgress,
    ) -> Result<Box<dyn OpenModel>, LoadFailure> {
        let (gate, progress) = (Arc::clone(&self.0), progress.clone());
        Ok(Box::new(Opened { gate, name: model.name.clone(), progress }))
    }

    fn about(&self, _: &ModelName) -> Option<About> {
        Some(about())
    }
}

fn about() -> About {
    About {
        context: 4096,
        family: "Qwen3".to_owned(),
        parameters: 12_000_000,
        forms: vec!["int4".to_owned(), "bf16".to_owned()],
        weight_bytes: 6_000_000,
    }
}

impl OpenModel for Opened {
    fn about(&self) -> About {
        about()
    }

    fn plan(&self) -> Result<MemoryNeed, LoadFailure> {
        Ok(MemoryNeed { bytes: 7_000_000, ..MemoryNeed::default() })
    }

    fn load(self: Box<Self>) -> Result<Loaded, LoadFailure> {
        self.progress.set(LoadStage::Loading, 0.43);
        let mut is_open = self.gate.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.gate.changed.wait(is_open).unwrap();
        }
        if self.name == "broken" {
            let message = "a tensor is cut off".to_owned();
            return Err(LoadFailure { message, ..LoadFailure::hidden("/srv/x is cut off") });
        }
        let model = stub::model();
        let engine = stub::engine(&model, "a", &Arc::default());
        Ok(Loaded::new(&self.name, model, engine))
    }
}

/// A server of the models one, two and broken.
fn serve_three() -> (SocketAddr, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let server = Server::bind(Options::new("127.0.0.1:0".parse().unwrap()), |_| {}).unwrap();
    let address = server.address().unwrap();
    let mut names = ["one", "two", "broken"].map(|name| ModelName::new(name, name)).to_vec();
    names[1].aliases.push("gpt-4o".to_owned());
    let source = Arc::new(Source(Arc::clone(&gate)));
    std::thread::spawn(move || server.run_models(names, source));
    (address, gate)
}

fn post(address: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let answer = read(send(address, "POST", path, &body.to_string()));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

fn listed(address: SocketAddr) -> Vec<Value> {
    let answer = get(address, "/v1/models");
    let json: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    json["data"].as_array().unwrap().clone()
}

fn status(address: SocketAddr, id: &str) -> Value {
    let all = listed(address);
    all.iter().find(|model| model["id"] == id).unwrap()["status"].clone()
}

/// The routes that stream an answer, with a body for each.
fn routes(model: &str) -> [(&'static str, Value); 5] {
    let chat = json!({"model": model, "stream": true, "max_tokens": 1,
        "messages": [{"role": "user", "content": "x"}]});
    let text = json!({"model": model, "stream": true, "max_tokens": 1, "prompt": "x"});
    let input = json!({"model": model, "stream": true, "max_output_tokens": 1, "input": "x"});
    let lines = json!({"model": model, "messages": [{"role": "user", "content": "x"}],
        "options": {"num_predict": 1}});
    [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/completions", text),
        ("/v1/messages", chat),
        ("/v1/responses", input),
        ("/api/chat", lines),
    ]
}

#[test]
fn streams_of_every_dialect_wait_for_the_model_with_comments() {
    let (address, gate) = serve_three();
    let mut begun: Vec<_> = routes("two")
        .iter()
        .map(|(path, body)| (*path, BufReader::new(send(address, "POST", path, &body.to_string()))))
        .collect();
    for (path, stream) in &mut begun {
        let mut text = String::new();
        // The head comes, then comments; nothing that readers of lines would not understand.
        let awaited = if path.starts_with("/api/") { "\r\n" } else { ": loading the model, 43 %" };
        while !text.lines().any(|line| format!("{line}\r\n").starts_with(awaited)) {
            assert!(stream.read_line(&mut text).unwrap() > 0, "{path}: {text}");
        }
        assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
    }
    assert_eq!(status(address, "two"), json!({"value": "loading", "progress": 0.43}));
    gate.set(true);
    for (path, mut stream) in begun {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        let end = match path {
            "/v1/messages" => "event: message_stop",
            "/v1/responses" => "event: response.incomplete",
            "/api/chat" => "\"done\":true",
            _ => "data: [DONE]",
        };
        assert!(rest.contains(end), "{path}: {rest}");
    }
    assert_eq!(status(address, "two"), json!({"value": "loaded"}));
    assert_eq!(status(address, "one"), json!({"value": "unloaded"}));
}

#[test]
fn a_model_that_cannot_be_loaded_fails_in_the_words_of_each_dialect() {
    let (address, gate) = serve_three();
    // Before the stream has begun, with a status.
    gate.set(true);
    for (path, body) in routes("broken") {
        let (status, answer) = post(address, path, &body);
        assert_eq!(status, 503, "{path}: {answer}");
        let text = answer.to_string();
        assert!(text.contains("the model broken: a tensor is cut off"), "{path}: {text}");
        assert!(!text.contains("/srv"), "{path}: {text}");
    }
    // The others go on.
    assert_eq!(post(address, routes("one")[1].0, &routes("one")[1].1).0, 200);
    // After it, as an event. A request that comes before a failed load is forgotten gets its status.
    for (path, body) in routes("broken") {
        let start = Instant::now();
        while status(address, "broken") != json!({"value": "unloaded"}) {
            assert!(start.elapsed() < Duration::from_secs(60), "the failed load is not forgotten");
            std::thread::sleep(Duration::from_millis(5));
        }
        gate.set(false);
        let mut stream = BufReader::new(send(address, "POST", path, &body.to_string()));
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{path}: {line}");
        gate.set(true);
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        let event = match path {
            "/v1/messages" => "event: error\ndata: {\"type\":\"error\",",
            "/v1/responses" => "event: error\ndata: {",
            "/api/chat" => "\r\n{\"error\":\"the model broken: ",
            _ => "data: {\"error\":{",
        };
        assert!(rest.contains(event) && rest.contains("cut off"), "{path}: {rest}");
        assert_eq!(rest.contains("[DONE]"), path.contains("completions"), "{path}: {rest}");
    }
}

#[test]
fn an_unknown_model_is_not_found_in_the_words_of_each_dialect() {
    let (address, gate) = serve_three();
    gate.set(true);
    for (path, body) in routes("gpt-9") {
        let (status, answer) = post(address, path, &body);
        assert_eq!(status, 404, "{path}: {answer}");
        match path {
            "/v1/messages" => {
                let error = json!({"type": "not_found_error", "message": "model: gpt-9"});
                assert_eq!(answer, json!({"type": "error", "error": error}));
            }
            "/api/chat" => assert_eq!(answer, json!({"error": "model \"gpt-9\" not found"})),
            _ => {
                assert_eq!(answer["error"]["code"], "model_not_found", "{path}: {answer}");
                assert_eq!(answer["error"]["param"], "model");
            }
        }
    }
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "x"})),
        ("/v1/rerank", json!({"query": "x", "documents": ["x"]})),
        ("/v1/messages/count_tokens", json!({"messages": [{"role": "user", "content": "x"}]})),
        ("/api/embed", json!({"input": "x"})),
        ("/api/show", json!({})),
        ("/api/generate", json!({"prompt": "x"})),
        ("/tokenize", json!({"content": "x"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/v1/chunks", json!({"text": "x"})),
        ("/models/load", json!({})),
        ("/models/unload", json!({})),
    ] {
        let mut body = body;
        body["model"] = "gpt-9".into();
        assert_eq!(post(address, path, &body).0, 404, "{path}");
    }
    assert!(get(address, "/v1/models/gpt-9").starts_with("HTTP/1.1 404"));
    assert!(get(address, "/v1/chunks?model=gpt-9").starts_with("HTTP/1.1 404"));
    // None was loaded for it.
    assert!(listed(address).iter().all(|model| model["status"]["value"] == "unloaded"));
}

#[test]
fn models_are_listed_loaded_and_unloaded_under_all_their_names() {
    let (address, gate) = serve_three();
    assert!(get(address, "/health").starts_with("HTTP/1.1 200"));
    let all = listed(address);
    let ids: Vec<&str> = all.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["one", "two", "gpt-4o", "broken"]);
    assert_eq!(all[2]["root"], "two");
    // Known from their files, before anything is loaded.
    assert_eq!(all[0]["max_model_len"], 4096);
    assert_eq!(all[0]["meta"]["forms"], json!(["int4", "bf16"]));
    gate.set(true);
    let alias = json!({"model": "gpt-4o"});
    let (code, loaded) = post(address, "/models/load", &alias);
    assert_eq!((code, &loaded["success"], &loaded["model"]), (200, &json!(true), &json!("two")));
    assert_eq!(status(address, "gpt-4o"), json!({"value": "loaded"}));
    let chat = json!({"model": "gpt-4o", "max_tokens": 1,
        "messages": [{"role": "user", "content": "x"}]});
    assert_eq!(post(address, "/v1/chat/completions", &chat).1["model"], "two");
    // A request without a name is the first model's.
    let unnamed = json!({"max_tokens": 1, "prompt": "x"});
    assert_eq!(post(address, "/v1/completions", &unnamed).1["model"], "one");
    let metrics = get(address, "/metrics");
    assert!(metrics.contains("weft_answers_total{model=\"two\",reason=\"length\"} 1"), "{metrics}");
    let ps: Value =
        serde_json::from_str(get(address, "/api/ps").split_once("\r\n\r\n").unwrap().1).unwrap();
    let sizes: Vec<_> = ps["models"].as_array().unwrap().iter().map(|m| &m["size"]).collect();
    assert_eq!(sizes, [7_000_000, 7_000_000]);
    for name in ["gpt-4o", "one"] {
        let (code, answer) = post(address, "/models/unload", &json!({"model": name}));
        assert_eq!((code, &answer["status"]["value"]), (200, &json!("unloaded")));
    }
    // As `ollama stop` does it.
    post(address, "/models/load", &json!({"model": "one"}));
    let (code, stopped) = post(address, "/api/generate", &json!({"model": "one", "keep_alive": 0}));
    assert_eq!((code, &stopped["done_reason"]), (200, &json!("unload")));
    assert!(listed(address).iter().all(|model| model["status"]["value"] == "unloaded"));
}

#[test]
fn a_model_that_is_served_alone_answers_to_any_name_also_after_it_was_unloaded() {
    let (address, _) = harness::serve();
    let ask = |model: &str| {
        let chat = json!({"model": model, "max_tokens": 1,
            "messages": [{"role": "user", "content": "x"}]});
        post(address, "/v1/chat/completions", &chat)
    };
    for name in ["stub", "", "gpt-9"] {
        let (code, answer) = ask(name);
        assert_eq!((code, &answer["model"]), (200, &json!("stub")), "{name}: {answer}");
        assert_eq!(post(address, "/models/unload", &json!({"model": name})).0, 200);
        assert_eq!(status(address, "stub"), json!({"value": "unloaded"}));
        assert!(get(address, "/health").starts_with("HTTP/1.1 200"));
    }
    assert_eq!(ask("stub").0, 200);
    assert!(get(address, "/metrics").contains("weft_answers_total{reason=\"length\"} 4"));
}

#[test]
fn clients_of_llama_cpp_read_settings_and_lanes() {
    let (address, gate) = serve_three();
    let json = |path: &str| -> Value {
        let answer = get(address, path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    // Lanes are known without loading the model.
    let slots = json("/slots?model=gpt-4o");
    assert_eq!(slots.as_array().unwrap().len(), 8);
    assert_eq!((&slots[7]["n_ctx"], &slots[7]["is_processing"]), (&json!(4096), &json!(false)));
    gate.set(true);
    let props = json("/props?model=gpt-4o");
    assert_eq!((&props["model_alias"], &props["total_slots"]), (&json!("two"), &json!(8)));
    let settings = &props["default_generation_settings"];
    assert_eq!(settings["n_ctx"], 4096);
    assert!(settings["params"]["temperature"].is_number(), "{settings}");
    assert!(props["chat_template"].as_str().unwrap().contains("messages"), "{props}");
    assert_eq!(props["eos_token"], "<|im_end|>");
    for path in ["/props?model=gpt-9", "/slots?model=gpt-9"] {
        assert!(get(address, path).starts_with("HTTP/1.1 404"), "{path}");
    }
}
