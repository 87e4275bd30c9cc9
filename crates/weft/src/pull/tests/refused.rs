//! Pulls that are refused: by the hub, by the user's settings, or because the hub is not
//! trustworthy.

use super::*;

#[test]
fn missing_repository() {
    let scene = Scene::with_model();
    let error = scene.pull("org/other").unwrap_err();
    assert!(matches!(error, PullError::RepoNotFound { .. }), "{error}");
    assert!(error.to_string().contains("org/other"), "{error}");
    assert_eq!(scene.hub.requests().len(), 1, "a 404 does not pass");
    assert!(tree(scene.cache.path()).is_empty());
}

#[test]
fn missing_revision() {
    let scene = Scene::with_model();
    let error = scene.pull("org/name@v2").unwrap_err();
    assert!(matches!(error, PullError::RevisionNotFound { .. }), "{error}");
    assert!(error.to_string().contains("\"v2\""), "{error}");
}

#[test]
fn missing_file() {
    for (server, method) in [(Server::Hub, "HEAD"), (Server::Hub, "GET"), (Server::Cdn, "GET")] {
        let scene = Scene::with_model();
        scene.hub.fault(server, method, WEIGHTS, Fault::Status(404, "EntryNotFound"));
        let error = scene.pull(REPO).unwrap_err();
        assert!(matches!(error, PullError::FileNotFound { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(WEIGHTS) && text.contains(SHA), "{text}");
        assert!(!scene.has_ref());
    }
}

#[test]
fn denied_without_a_token() {
    let scene = Scene::with_model();
    scene.hub.require_token("hf_secret");
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::Denied { status: 401, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("set HF_TOKEN") && text.contains("/org/name"), "{text}");
    assert_eq!(scene.hub.requests().len(), 1, "a 401 does not pass");
}

#[test]
fn denied_with_a_token() {
    let mut scene = Scene::with_model();
    scene.token = Token::new("hf_secret");
    scene.hub.fault(Server::Hub, "HEAD", WEIGHTS, Fault::Status(403, "GatedRepo"));
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::Denied { status: 403, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("licence") && text.contains(WEIGHTS), "{text}");
    assert!(!text.contains("hf_secret"), "{text}");
}

#[test]
fn offline_touches_neither_network_nor_disk() {
    let scene = Scene::with_model();
    let env = HubEnv { offline: true, ..scene.env() };
    let reference = ModelRef::Repo(RepoRef::parse(REPO).unwrap());
    let error = pull_with(&reference, &env, &Recorder::default(), &scene.limits).unwrap_err();
    assert!(matches!(error, PullError::Offline { .. }), "{error}");
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    assert_eq!(scene.hub.requests(), []);
    assert!(fs::read_dir(scene.cache.path()).unwrap().next().is_none());
}

#[test]
fn folder_is_nothing_to_pull() {
    let scene = Scene::new();
    let reference = ModelRef::Folder(scene.cache.path().to_owned());
    let error = super::super::pull(&reference, &scene.env(), &Recorder::default()).unwrap_err();
    assert!(matches!(error, PullError::NotARepo { .. }), "{error}");
}

#[test]
fn unsafe_file_names() {
    let names = [
        "../../evil.safetensors",
        "/tmp/evil.safetensors",
        "a\\..\\evil.safetensors",
        "a//evil.safetensors",
        "a/../../evil.safetensors",
    ];
    for name in names {
        let scene = Scene::new();
        let files: [(&str, &[u8]); 3] = [("config.json", b"{}"), (WEIGHTS, b"w"), (name, b"evil")];
        scene.hub.add_commit(REPO, SHA, &files);
        let error = scene.pull(REPO).unwrap_err();
        assert!(matches!(error, PullError::UnsafeFileName { .. }), "{name}: {error}");
        assert!(tree(scene.cache.path()).is_empty(), "{name}");
        assert_eq!(scene.hub.requests().len(), 1, "{name}");
    }
}

#[test]
fn unsafe_names_in_the_index() {
    for name in ["../evil.safetensors", "/tmp/evil.safetensors", "model.bin"] {
        let scene = Scene::new();
        let index = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
        let files: [(&str, &[u8]); 3] = [
            ("config.json", b"{}"),
            ("model.safetensors.index.json", index.as_bytes()),
            (name, b""),
        ];
        scene.hub.add_commit(REPO, SHA, &files);
        let error = scene.pull(REPO).unwrap_err();
        let is_refused = matches!(error, PullError::UnsafeFileName { .. } | PullError::Hub(_));
        assert!(is_refused, "{name}: {error}");
        assert!(!scene.has_ref());
    }
}

#[test]
fn index_that_names_what_is_not_there() {
    let scene = Scene::new();
    let index = br#"{"weight_map":{"a":"gone.safetensors"}}"#;
    scene.hub.add_commit(
        REPO,
        SHA,
        &[("config.json", b"{}"), ("model.safetensors.index.json", index)],
    );
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::Unsuitable { .. }), "{error}");
    assert!(error.to_string().contains("gone.safetensors"), "{error}");
}

#[test]
fn pickled_weights_are_not_fetched() {
    let scene = Scene::new();
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("pytorch_model.bin", b"pickle")];
    scene.hub.add_commit(REPO, SHA, &files);
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::Unsuitable { .. }), "{error}");
    assert!(error.to_string().contains("safetensors"), "{error}");
    assert_eq!(scene.hub.requests().len(), 1);
}

#[test]
fn unsafe_headers() {
    let bad = [
        ("X-Linked-Etag", "\"../../../evil\""),
        ("X-Linked-Etag", "\"a.incomplete\""),
        ("X-Linked-Size", "-1"),
        ("X-Linked-Size", "many"),
        ("X-Linked-Size", ""),
        ("Location", "file:///etc/passwd"),
        ("Location", ""),
    ];
    for (name, value) in bad {
        let scene = Scene::with_model();
        let fault = Fault::Header(name, value.to_owned());
        scene.hub.always(Server::Hub, "HEAD", WEIGHTS, fault);
        let error = scene.pull(REPO).unwrap_err();
        assert!(matches!(error, PullError::BadAnswer { .. }), "{name}: {value}: {error}");
        assert!(!scene.has_ref());
    }
}

#[test]
fn endless_redirects() {
    let scene = Scene::with_model();
    scene.hub.always(Server::Hub, "GET", LIST, Fault::Redirect("main?blobs=true".to_owned()));
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::BadAnswer { .. }), "{error}");
    assert_eq!(scene.hub.requests().len(), 11);
}

#[test]
fn lists_that_no_hub_sends() {
    let bodies: [&[u8]; 4] = [
        b"<html>log in to the wireless network</html>",
        b"{}",
        br#"{"sha":"../../evil","siblings":[]}"#,
        br#"{"sha":"1111111111111111111111111111111111111111","siblings":[{"rfilename":1}]}"#,
    ];
    for body in bodies {
        let scene = Scene::with_model();
        scene.hub.fault(Server::Hub, "GET", LIST, Fault::Body(body.to_vec()));
        let error = scene.pull(REPO).unwrap_err();
        assert!(matches!(error, PullError::BadAnswer { .. }), "{error}");
        assert!(error.to_string().contains("HF_ENDPOINT"), "{error}");
        assert!(tree(scene.cache.path()).is_empty());
    }
}
