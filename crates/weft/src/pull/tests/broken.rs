//! Pulls that fail: wrong bytes, no bytes, no space on disk.

use super::*;

#[test]
fn wrong_hash_is_refused_and_not_kept() {
    let scene = Scene::with_model();
    let mut spoilt = weights();
    spoilt[123] ^= 1;
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::Body(spoilt));
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::WrongHash { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(WEIGHTS) && text.contains(&etag(WEIGHTS, &weights())), "{text}");
    assert!(!scene.incomplete().exists());
    assert!(!scene.repo().join("blobs").join(etag(WEIGHTS, &weights())).exists());
    assert!(!scene.has_ref());
    scene.pull(REPO).unwrap();
}

#[test]
fn small_files_are_checked_by_their_git_ids() {
    for lists_names_alone in [false, true] {
        let scene = Scene::with_model();
        if lists_names_alone {
            scene.hub.list_names_alone();
        }
        scene.hub.fault(Server::Hub, "GET", "config.json", Fault::Body(b"[]".to_vec()));
        let error = scene.pull(REPO).unwrap_err();
        assert!(matches!(error, PullError::WrongHash { .. }), "{error}");
        assert!(error.to_string().contains(&etag("config.json", b"{}")), "{error}");
        scene.pull(REPO).unwrap();
        assert_eq!(scene.snapshot_file("config.json"), b"{}");
    }
}

#[test]
fn what_the_hub_lists_counts_more_than_the_name_of_a_blob() {
    let scene = Scene::with_model();
    let name = Fault::Header("ETag", "\"of-a-proxy\"".to_owned());
    scene.hub.always(Server::Hub, "HEAD", "config.json", name);
    scene.hub.fault(Server::Hub, "GET", "config.json", Fault::Body(b"[]".to_vec()));
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::WrongHash { .. }), "{error}");
    scene.pull(REPO).unwrap();
    assert_eq!(scene.snapshot_file("config.json"), b"{}");
}

#[test]
fn wrong_length_is_refused() {
    for n in [699_999, 700_001] {
        let scene = Scene::with_model();
        scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::SayLength(n));
        let error = scene.pull(REPO).unwrap_err();
        assert!(matches!(error, PullError::WrongLength { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("700000") && text.contains(&n.to_string()), "{text}");
        assert!(!scene.has_ref());
        scene.pull(REPO).unwrap();
        assert_eq!(scene.snapshot_file(WEIGHTS), weights());
    }
}

#[test]
fn wrong_length_of_the_rest_is_refused() {
    let scene = Scene::with_model();
    scene.leave_incomplete(&weights()[..1000]);
    let range = Fault::Header("Content-Range", "bytes 1000-699999/800000".to_owned());
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, range);
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::WrongLength { .. }), "{error}");
}

#[test]
fn more_bytes_than_announced_are_refused() {
    let scene = Scene::with_model();
    let size = Fault::Header("X-Linked-Size", "699999".to_owned());
    scene.hub.fault(Server::Hub, "HEAD", WEIGHTS, size);
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::NoLength);
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::WrongLength { .. }), "{error}");
    assert!(!scene.has_ref());
    scene.pull(REPO).unwrap();
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn gives_up_without_progress_and_keeps_the_rest() {
    let scene = Scene::with_model();
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::CutAfter(1000));
    for _ in 0..2 {
        scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::CutAfter(0));
    }
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::GaveUp { attempts: 3, .. }), "{error}");
    assert_eq!(scene.hub.content_requests(WEIGHTS).len(), 3);
    assert_eq!(fs::read(scene.incomplete()).unwrap(), weights()[..1000]);
    assert!(!scene.has_ref());
    scene.pull(REPO).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS)[3], Some("bytes=1000-".to_owned()));
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn gives_up_on_a_server_that_never_gets_further() {
    let scene = Scene::with_model();
    scene.hub.always(Server::Cdn, "GET", WEIGHTS, Fault::IgnoreRangeAndCutAfter(1000));
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::GaveUp { attempts: 3, .. }), "{error}");
    assert_eq!(scene.hub.content_requests(WEIGHTS).len(), 3, "the same bytes are no progress");
}

#[test]
fn busy_server_is_asked_again() {
    let scene = Scene::with_model();
    for status in [503, 429] {
        scene.hub.fault(Server::Hub, "GET", LIST, Fault::Status(status, ""));
        scene.hub.fault(Server::Hub, "HEAD", WEIGHTS, Fault::Status(status, ""));
        scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::Status(status, ""));
    }
    let progress = Recorder::default();
    scene.pull_watched(REPO, &progress).unwrap();
    assert_eq!(progress.events("Retrying").len(), 6);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn server_that_stays_busy_is_left() {
    let scene = Scene::with_model();
    scene.hub.always(Server::Hub, "GET", LIST, Fault::Status(500, ""));
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::GaveUp { attempts: 3, .. }), "{error}");
    assert!(error.to_string().contains("500"), "{error}");
    assert_eq!(scene.hub.requests().len(), 3);
}

#[test]
fn server_that_is_not_there_is_said_so_at_once() {
    let scene = Scene::with_model();
    let endpoint = FakeHub::start().endpoint();
    let reference = ModelRef::Repo(RepoRef::parse(REPO).unwrap());
    let env = HubEnv { endpoint, ..scene.env() };
    let error = pull_with(&reference, &env, &Recorder::default(), &scene.limits).unwrap_err();
    assert!(matches!(error, PullError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&env.endpoint), "{error}");
}

/// `/dev/full` accepts no bytes, like a full disk.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_said_so_and_the_rest_is_kept() {
    let scene = Scene::with_model();
    let rest = scene.incomplete();
    fs::create_dir_all(rest.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &rest).unwrap();
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::DiskFull { .. }), "{error}");
    assert_eq!(scene.hub.content_requests(WEIGHTS).len(), 1, "no other attempt helps");
    assert!(rest.is_symlink(), "the rest is deleted");
    assert!(!scene.has_ref());
    fs::remove_file(&rest).unwrap();
    scene.pull(REPO).unwrap();
}

#[test]
fn folder_that_cannot_be_written_is_named() {
    let scene = Scene::with_model();
    fs::write(scene.cache.path().join("models--org--name"), b"a file in the way").unwrap();
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::Io { .. }), "{error}");
    assert!(error.to_string().contains("models--org--name"), "{error}");
}
