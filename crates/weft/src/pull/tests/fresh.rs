//! Pulls from a well-behaved hub: the downloaded files, and the cache afterwards.

use weft_core::hub::resolve;

use super::*;

#[test]
fn pull_writes_the_layout_of_the_hub() {
    let scene = Scene::new();
    let files: [(&str, &[u8]); 6] = [
        ("README.md", b"not needed"),
        ("config.json", b"{\"a\":1}"),
        ("tokenizer.json", b"{\"t\":1}"),
        ("chat_template.jinja", b""),
        ("model.safetensors", b"weights"),
        ("pytorch_model.bin", b"pickle"),
    ];
    scene.hub.add_commit(REPO, SHA, &files);
    let snapshot = scene.pull(REPO).unwrap();
    assert_eq!(snapshot, scene.repo().join("snapshots").join(SHA));

    let mut expected = BTreeMap::new();
    for name in ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"] {
        let content = files.iter().find(|(other, _)| *other == name).unwrap().1;
        let etag = etag(name, content);
        let link = format!("-> ../../blobs/{etag}").into_bytes();
        expected.insert(format!("models--org--name/blobs/{etag}"), content.to_vec());
        expected.insert(format!("models--org--name/snapshots/{SHA}/{name}"), link);
    }
    expected.insert("models--org--name/refs/main".to_owned(), SHA.as_bytes().to_vec());
    if cfg!(unix) {
        assert_eq!(tree(scene.cache.path()), expected);
    }
    let reference = ModelRef::Repo(RepoRef::parse(REPO).unwrap());
    assert_eq!(resolve(&reference, &scene.env()).unwrap(), snapshot);
}

#[test]
fn pull_again_fetches_nothing() {
    let scene = Scene::with_model();
    let first = scene.pull(REPO).unwrap();
    let before = tree(scene.cache.path());
    let n_requests = scene.hub.requests().len();
    let progress = Recorder::default();
    assert_eq!(scene.pull_watched(REPO, &progress).unwrap(), first);

    let again = &scene.hub.requests()[n_requests..];
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(again[0].path, "/api/models/org/name/revision/main?blobs=true");
    assert_eq!(tree(scene.cache.path()), before);
    assert_eq!(progress.events("Cached").len(), 2);
    assert_eq!(progress.events("Started").len(), 0);
}

#[test]
fn pull_of_another_commit_shares_blobs() {
    let scene = Scene::with_model();
    let first = scene.pull(REPO).unwrap();
    scene.hub.add_commit(REPO, SHA_2, &[("config.json", b"{\"v\":2}"), (WEIGHTS, &weights())]);
    let second = scene.pull(REPO).unwrap();

    assert_eq!(scene.hub.content_requests(WEIGHTS).len(), 1, "the weights are fetched once");
    assert_eq!(fs::read(first.join("config.json")).unwrap(), b"{}");
    assert_eq!(fs::read(second.join("config.json")).unwrap(), b"{\"v\":2}");
    assert_eq!(fs::read(second.join(WEIGHTS)).unwrap(), weights());
    assert_eq!(fs::read_to_string(scene.repo().join("refs/main")).unwrap(), SHA_2);
}

#[test]
fn pull_takes_the_shards_that_the_index_names() {
    let scene = Scene::new();
    let index = br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    let files: [(&str, &[u8]); 6] = [
        ("m-1.safetensors", b"one"),
        ("m-2.safetensors", b"two"),
        ("m-3.safetensors", b"not named"),
        (WEIGHTS, b"all of them once more"),
        ("model.safetensors.index.json", index),
        ("config.json", b"{}"),
    ];
    scene.hub.add_commit(REPO, SHA, &files);
    let snapshot = scene.pull(REPO).unwrap();
    let mut names: Vec<String> = fs::read_dir(&snapshot)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected =
        ["config.json", "m-1.safetensors", "m-2.safetensors", "model.safetensors.index.json"];
    assert_eq!(names, expected);
    assert_eq!(fs::read(snapshot.join("m-2.safetensors")).unwrap(), b"two");
}

#[test]
fn pull_of_a_named_revision() {
    let scene = Scene::with_model();
    scene.hub.add_commit(REPO, SHA_2, &[("config.json", b"{}"), (WEIGHTS, b"w2")]);
    scene.hub.set_ref(REPO, "refs/pr/1", SHA);
    let snapshot = scene.pull("org/name@refs/pr/1").unwrap();
    assert!(snapshot.ends_with(SHA));
    assert_eq!(fs::read_to_string(scene.repo().join("refs/refs/pr/1")).unwrap(), SHA);
    assert_eq!(
        scene.hub.requests()[0].path,
        "/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true"
    );

    let by_commit = scene.pull(&format!("org/name@{SHA_2}")).unwrap();
    assert!(by_commit.ends_with(SHA_2));
    let names = fs::read_dir(scene.repo().join("refs")).unwrap().count();
    assert_eq!(names, 1, "a commit needs no ref");
    let reference = ModelRef::Repo(RepoRef::parse("org/name@2222222").unwrap());
    assert_eq!(resolve(&reference, &scene.env()).unwrap(), by_commit);
}

#[test]
fn pull_escapes_names_in_addresses() {
    let scene = Scene::new();
    let name = "weights é #1?.safetensors";
    scene.hub.add_commit(REPO, SHA, &[("config.json", b"{}"), (name, b"w")]);
    // The fake hub does not escape its redirects, so this test gives it the escaped target.
    let location = format!(
        "{}/org/name/{SHA}/weights%20%C3%A9%20%231%3F.safetensors",
        scene.hub.cdn_endpoint()
    );
    for method in ["HEAD", "GET"] {
        let fault = Fault::Header("Location", location.clone());
        scene.hub.always(Server::Hub, method, "%3F.safetensors", fault);
    }
    scene.pull(REPO).unwrap();
    assert_eq!(scene.snapshot_file(name), b"w");
}

#[test]
fn pull_sends_the_token_to_the_hub_only() {
    let mut scene = Scene::with_model();
    scene.hub.require_token("hf_secret");
    scene.hub.redirect_small_files();
    scene.token = Token::new("hf_secret");
    scene.pull(REPO).unwrap();

    let requests = scene.hub.requests();
    let (hub, cdn): (Vec<_>, Vec<_>) = requests.iter().partition(|r| r.server == Server::Hub);
    assert!(hub.iter().any(|r| r.path.starts_with("/api/resolve-cache/")), "{hub:?}");
    assert!(hub.iter().all(|r| r.authorization.as_deref() == Some("Bearer hf_secret")), "{hub:?}");
    assert_eq!(cdn.len(), 1, "{cdn:?}");
    assert!(cdn.iter().all(|r| r.authorization.is_none()), "{cdn:?}");
}

#[test]
fn pull_reports_its_progress() {
    let scene = Scene::with_model();
    let progress = Recorder::default();
    scene.pull_watched(REPO, &progress).unwrap();
    let started = "Started { file: \"model.safetensors\", size_bytes: 700000, have_bytes: 0 }";
    assert!(progress.events("Started").contains(&started.to_owned()));
    let received = progress.events("Received");
    assert_eq!(received.last().unwrap(), "Received { have_bytes: 700000 }");
    assert!(received.len() > 2, "{received:?}");
    assert_eq!(progress.events("Finished").len(), 2);
}

#[test]
fn pull_takes_all_parts_of_one_gguf_model() {
    let scene = Scene::new();
    let parts = ["1", "2"].map(|n| format!("Q4_K_M/m-Q4_K_M-0000{n}-of-00002.gguf"));
    let files: [(&str, &[u8]); 5] = [
        ("config.json", b"{}"),
        ("m-Q8_0.gguf", b"eight"),
        (&parts[0], b"one"),
        (&parts[1], b"two"),
        ("m-F16.gguf", b"sixteen"),
    ];
    scene.hub.add_commit(REPO, SHA, &files);
    let model = scene.pull("org/name:q4_k_m").unwrap();
    let snapshot = scene.repo().join("snapshots").join(SHA);
    assert_eq!(model, snapshot.join(&parts[0]));
    assert_eq!(fs::read(snapshot.join(&parts[1])).unwrap(), b"two");
    for other in ["m-Q8_0.gguf", "m-F16.gguf", "config.json"] {
        assert!(!snapshot.join(other).exists(), "{other}");
    }
    assert_eq!(scene.pull("org/name/m-Q8_0.gguf").unwrap(), snapshot.join("m-Q8_0.gguf"));
    let reference = ModelRef::Repo(RepoRef::parse("org/name:Q4_K_M").unwrap());
    assert_eq!(resolve(&reference, &scene.env()).unwrap(), model);
    let error = scene.pull("org/name:Q2_K").unwrap_err().to_string();
    assert!(error.contains("m-F16.gguf, m-Q8_0.gguf"), "{error}");
}
