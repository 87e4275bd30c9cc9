//! Who may connect, and what the server reports before it answers.

use serde_json::{Value, json};

use crate::harness::{JSON, Server, chat, merged};

#[test]
fn health_is_503_while_the_model_loads_and_then_200_and_needs_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::spawn(folder, &["--api-key", "secret", "--kernels", "reference"]);
    let no_key = [("X-Api-Key", "wrong")];
    let health = || {
        let (status, _, body) = server.send("GET", "/health", &no_key, b"");
        (status, serde_json::from_slice::<Value>(&body).unwrap())
    };
    let mut seen = vec![health()];
    while seen.last().unwrap().0 != 200 {
        seen.push(health());
    }
    for (status, body) in &seen[..seen.len() - 1] {
        assert_eq!((*status, &body["status"]), (503, &json!("loading")), "{body}");
        assert!((0.0..=1.0).contains(&body["progress"].as_f64().unwrap()), "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains("loading"), "{body}");
    }
    assert_eq!(seen.last().unwrap().1, json!({"status": "ok"}));
    let (status, models) = server.get("/v1/models");
    assert_eq!(status, 200);
    let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["weft-tiny"]);
    assert_eq!(server.get("/v1/models/weft-tiny").0, 200);
    assert_eq!(server.get("/v1/models/other").0, 404);
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[test]
fn any_name_is_answered_by_the_one_model_and_strict_names_are_not() {
    let server = Server::start(&[]);
    let ask = |server: &Server, more: Value| {
        let body = merged(chat(), more).to_string();
        let (status, head, body) =
            server.send("POST", "/v1/chat/completions", &JSON, body.as_bytes());
        (status, head, String::from_utf8(body).unwrap())
    };
    for more in [json!({"model": "gpt-4\n"}), json!({"model": "gpt-4\n", "stream": true})] {
        let (status, head, body) = ask(&server, more);
        assert_eq!((status, header(&head, "x-weft-model")), (200, Some("weft-tiny")), "{body}");
        assert!(body.contains("\"model\":\"weft-tiny\""), "{body}");
    }
    let completion = json!({"prompt": "x", "max_tokens": 1, "model": "davinci"});
    assert_eq!(server.post("/v1/completions", &completion).0, 200);
    server.until_logged("davinci");
    let log = server.log();
    assert_eq!(log.matches("gpt-4\\n").count(), 1, "once: {log}");
    for its_own in [json!({"model": "weft-tiny"}), json!({})] {
        let (status, head, _) = ask(&server, its_own);
        assert_eq!((status, header(&head, "x-weft-model")), (200, None));
    }

    let names = ["--served-model-name", "gpt-4o,local", "--served-model-name", "third"];
    let server = Server::start(&[&names[..], &["--strict-model"]].concat());
    let models = server.get("/v1/models").1;
    let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["gpt-4o", "local", "third"]);
    for name in ["gpt-4o", "local", "third"] {
        let (status, _, body) = ask(&server, json!({"model": name}));
        assert_eq!(status, 200, "{body}");
        assert!(body.contains("\"model\":\"gpt-4o\""), "{body}");
        assert_eq!(server.get(&format!("/v1/models/{name}")).1["id"], name);
    }
    let (status, _, body) = ask(&server, json!({"model": "other"}));
    assert_eq!(status, 404, "{body}");
    assert!(body.contains("model_not_found"), "{body}");
}

#[test]
fn requests_have_an_id_one_host_and_a_plain_body() {
    let server = Server::start(&["--api-key", "secret"]);
    let id = |path: &str, headers: &[(&str, &str)]| {
        let (status, head, _) = server.send("GET", path, headers, b"");
        (status, header(&head, "x-request-id").unwrap().to_owned())
    };
    assert_eq!(id("/health", &[("X-Request-Id", "trace-7")]), (200, "trace-7".to_owned()));
    let refused = [("X-Request-Id", "trace-8"), ("X-Api-Key", "wrong")];
    assert_eq!(id("/v1/models", &refused), (401, "trace-8".to_owned()));
    let long = "x".repeat(1000);
    assert_eq!(id("/health", &[("X-Request-Id", &long)]).1.len(), 128);
    assert_ne!(id("/health", &[]).1, id("/health", &[]).1, "each has its own");

    let two = [("Host", "localhost"), ("Host", "localhost")];
    assert_eq!(server.send("GET", "/health", &two, b"").0, 400);
    let path = "/v1/chat/completions";
    let gzip = [JSON[0], ("Content-Encoding", "gzip")];
    assert_eq!(server.send("POST", path, &gzip, &[0x1f, 0x8b, 8, 0]).0, 415);
    let identity = [JSON[0], ("Content-Encoding", "identity")];
    assert_eq!(server.send("POST", path, &identity, chat().to_string().as_bytes()).0, 200);
}

#[test]
fn desktop_apps_are_let_in_by_their_origins() {
    let apps = "tauri://localhost,app://obsidian.md,vscode-webview://*,chrome-extension://abc";
    let server = Server::start(&["--allow-origin", apps]);
    let get = |origin: &str| server.send("GET", "/v1/models", &[("Origin", origin)], b"");
    for origin in [
        "tauri://localhost",
        "app://obsidian.md",
        "vscode-webview://0k3abc",
        "chrome-extension://abc",
        "http://localhost:3000",
    ] {
        let (status, head, _) = get(origin);
        let allowed = header(&head, "access-control-allow-origin");
        assert_eq!((status, allowed), (200, Some(origin)));
        // Otherwise a cache could give one page the answer that another page was allowed to read.
        assert_eq!(header(&head, "vary"), Some("Origin"));
        assert_eq!(header(&head, "x-content-type-options"), Some("nosniff"));
        let exposed = header(&head, "access-control-expose-headers").unwrap();
        assert!(exposed.contains("x-request-id"), "{exposed}");
    }
    for origin in ["tauri://evil", "chrome-extension://abd", "https://obsidian.md", "null"] {
        assert_eq!(get(origin).0, 403, "{origin}");
    }
    let weft = env!("CARGO_BIN_EXE_weft");
    let any = ["serve", "--port", "0", "--allow-origin", "http://*"];
    let any = std::process::Command::new(weft).args(any).output().unwrap();
    assert_eq!(any.status.code(), Some(2));
}

#[test]
fn a_key_is_wanted_everywhere_but_at_the_door() {
    let server = Server::start(&["--api-key", "secret"]);
    let document = server.get("/openapi.json").1;
    let paths = document["paths"].as_object().unwrap().iter();
    let documented = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys();
        methods.map(move |method| (method.to_uppercase(), path.replace(['{', '}'], "")))
    });
    let hidden = ["/models", "/no/such/route"].map(|path| ("GET".to_owned(), path.to_owned()));
    let routes: Vec<_> = documented.chain(hidden).filter(|(_, path)| path != "/health").collect();
    assert!(routes.len() > 15, "{routes:?}");
    for (method, path) in &routes {
        for headers in [
            vec![("Authorization", "")],
            vec![("Authorization", "Bearer wrong")],
            vec![("Authorization", "Basic secret")],
            vec![("X-Api-Key", "secre")],
        ] {
            let (status, _, body) = server.send(method, path, &headers, b"");
            assert_eq!(status, 401, "{method} {path} {headers:?}");
            let body: Value = serde_json::from_slice(&body).unwrap();
            // Other dialects have their own form, which their tests check.
            let others = ["/api/", "/v1/messages", "/completion"];
            match others.iter().any(|dialect| path.starts_with(dialect)) {
                true => server.check_secrets(&body),
                false => server.check_error(&body),
            }
        }
    }
    for headers in [[("Authorization", "Bearer secret")], [("X-Api-Key", "secret")]] {
        assert_eq!(server.send("GET", "/v1/models", &headers, b"").0, 200);
    }
    // Only a browser's question before a request needs no key.
    assert_eq!(server.send("OPTIONS", "/v1/models", &[("Authorization", "")], b"").0, 401);
    for open in ["/health", "/"] {
        assert_eq!(server.send("GET", open, &[("X-Api-Key", "wrong")], b"").0, 200);
    }
}

#[test]
fn foreign_pages_and_foreign_names_are_refused() {
    let server = Server::start(&["--allow-host", "box.lan"]);
    let get = |headers: &[(&str, &str)]| server.send("GET", "/v1/models", headers, b"").0;
    for host in ["evil.com", "localhost.evil.com", "evil.com:80", "10.0.0.1", ""] {
        assert_eq!(get(&[("Host", host)]), 403, "{host}");
    }
    for host in ["localhost", "LOCALHOST:9", "[::1]:1", "box.lan"] {
        assert_eq!(get(&[("Host", host)]), 200, "{host}");
    }
    for origin in
        ["http://evil.com", "http://localhost.evil.com", "null", "https://localhost@evil.com"]
    {
        assert_eq!(get(&[("Origin", origin)]), 403, "{origin}");
    }
    let (status, head, _) =
        server.send("GET", "/v1/models", &[("Origin", "http://localhost:3000")], b"");
    let text = "access-control-allow-origin: http://localhost:3000";
    assert!(status == 200 && head.to_lowercase().contains(text), "{head}");
    let preflight = |origin| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization,content-type"),
        ];
        server.send("OPTIONS", "/v1/chat/completions", &headers, b"")
    };
    let (status, head, _) = preflight("http://127.0.0.1:3000");
    assert_eq!(status, 200);
    let head = head.to_lowercase();
    assert!(head.contains("access-control-allow-headers: authorization,content-type"), "{head}");
    assert_eq!(preflight("http://evil.com").0, 403);
}

#[test]
fn bodies_are_json_of_a_size_that_was_agreed_on() {
    let server = Server::start(&[]);
    let path = "/v1/chat/completions";
    let body = chat().to_string();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let (status, _, _) = server.send("POST", path, &[("Content-Type", kind)], body.as_bytes());
        assert_eq!(status, 415, "{kind}");
    }
    // A program may leave the type out; a page, which sends its origin, may not.
    assert_eq!(server.send("POST", path, &[], body.as_bytes()).0, 200);
    let page = [("Origin", "http://localhost:3000")];
    assert_eq!(server.send("POST", path, &page, body.as_bytes()).0, 415);
    let charset = [("Content-Type", "application/json; charset=utf-8")];
    assert_eq!(server.send("POST", path, &charset, body.as_bytes()).0, 200);

    const LIMIT: usize = 16 << 20;
    let padded = |bytes: usize| {
        let body = chat().to_string();
        let pad = bytes - body.len() - ",\"pad\":\"\"".len();
        format!("{},\"pad\":\"{}\"}}", &body[..body.len() - 1], "x".repeat(pad)).into_bytes()
    };
    assert_eq!(server.send("POST", path, &JSON, &padded(LIMIT)).0, 200);
    let (status, _, body) = server.send("POST", path, &JSON, &padded(LIMIT + 1));
    assert_eq!(status, 413);
    server.check_error(&serde_json::from_slice(&body).unwrap());

    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(server.send("POST", path, &JSON, deep.as_bytes()).0, 400);
    for broken in ["", "{", "nul", "{\"messages\": [}", "\u{feff}{}"] {
        assert_eq!(server.send("POST", path, &JSON, broken.as_bytes()).0, 400, "{broken}");
    }
    assert_eq!(server.send("GET", path, &[], b"").0, 405);
    assert_eq!(server.get("/nothing").0, 404);
}

#[test]
fn other_machines_are_not_let_in_by_mistake() {
    let weft = |args: &[&str]| {
        let weft = env!("CARGO_BIN_EXE_weft");
        std::process::Command::new(weft).arg("serve").args(args).output().unwrap()
    };
    let open = weft(&["--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(open.status.code(), Some(2));
    let text = String::from_utf8(open.stderr).unwrap();
    assert!(text.contains("--api-key") && text.contains("--insecure"), "{text}");
    let missing = weft(&["--port", "0", "--offline", "no/such-model"]);
    assert_eq!(missing.status.code(), Some(3));
}

#[test]
fn an_empty_key_is_refused_wherever_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "api-key = \"\"\n").unwrap();
    let weft = || {
        let mut weft = std::process::Command::new(env!("CARGO_BIN_EXE_weft"));
        weft.args(["serve", "--port", "0", "--offline", "no/such-model"]);
        weft
    };
    for (mut weft, source) in [
        (weft(), "nothing"),
        (weft(), "flag"),
        (weft(), "environment"),
        (weft(), "config"),
        (weft(), "blank"),
    ] {
        match source {
            "flag" => weft.args(["--api-key", ""]),
            "environment" => weft.env("WEFT_API_KEY", ""),
            "config" => weft.env("WEFT_CONFIG", &config),
            "blank" => weft.env("WEFT_API_KEY", " "),
            _ => &mut weft,
        };
        let ended = weft.output().unwrap();
        let wanted = if source == "nothing" { 3 } else { 2 };
        assert_eq!(ended.status.code(), Some(wanted), "{source}");
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(text.contains("--api-key is empty"), wanted == 2, "{source}: {text}");
    }
}

#[test]
fn an_address_that_nobody_connected_to_is_foreign() {
    let server = Server::start(&["--host", "0.0.0.0", "--insecure"]);
    let get = |headers: &[(&str, &str)]| server.send("GET", "/v1/models", headers, b"");
    for host in ["6.6.6.6", "10.0.0.1:8080", "0.0.0.0", "[fd00::1]"] {
        assert_eq!(get(&[("Host", host)]).0, 403, "{host}");
    }
    for origin in ["http://6.6.6.6", "http://6.6.6.6:8080", "https://[fd00::1]"] {
        let (status, head, _) = get(&[("Origin", origin)]);
        assert_eq!(status, 403, "{origin}");
        assert!(!head.to_lowercase().contains("access-control-allow"), "{head}");
    }
    let own = format!("127.0.0.1:{}", server.port);
    let origin = format!("http://{own}");
    assert_eq!(get(&[("Host", &own), ("Origin", &origin)]).0, 200);
}

#[test]
fn the_page_and_the_document_are_there() {
    let server = Server::start(&[]);
    let (status, head, body) = server.send("GET", "/", &[], b"");
    assert!(status == 200 && head.to_lowercase().contains("content-type: text/html"), "{head}");
    assert!(String::from_utf8(body).unwrap().contains("<!doctype html>"));
    let (status, document) = server.get("/openapi.json");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
}
