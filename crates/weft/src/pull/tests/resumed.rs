//! Interrupted pulls: how a later attempt, or a later process, resumes them.

use std::sync::mpsc;

use super::*;

const HALF: usize = 350_000;

fn range(from: usize) -> Option<String> {
    Some(format!("bytes={from}-"))
}

#[test]
fn broken_connection_resumes_where_it_broke() {
    let scene = Scene::with_model();
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::CutAfter(1000));
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::CutAfter(2000));
    let progress = Recorder::default();
    scene.pull_watched(REPO, &progress).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS), [None, range(1000), range(3000)]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
    assert_eq!(progress.events("Retrying").len(), 2);
}

#[test]
fn progress_starts_the_count_of_failures_again() {
    let scene = Scene::with_model();
    for _ in 0..8 {
        scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::CutAfter(10));
    }
    scene.pull(REPO).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS).len(), 9, "with a limit of 3 in a row");
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn rest_of_a_killed_process_resumes() {
    let scene = Scene::with_model();
    let rest = scene.leave_incomplete(&weights()[..HALF]);
    let progress = Recorder::default();
    scene.pull_watched(REPO, &progress).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS), [range(HALF)]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
    assert!(!rest.exists());
    let started = "Started { file: \"model.safetensors\", size_bytes: 700000, have_bytes: 350000 }";
    assert!(progress.events("Started").contains(&started.to_owned()));
}

#[test]
fn rest_that_is_whole_needs_no_request() {
    let scene = Scene::with_model();
    scene.leave_incomplete(&weights());
    scene.pull(REPO).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS), []);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn rest_that_is_too_long_is_thrown_away() {
    let scene = Scene::with_model();
    scene.leave_incomplete(&[0; 700_001]);
    scene.pull(REPO).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS), [None]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn rest_that_is_damaged_is_found_by_its_hash() {
    let scene = Scene::with_model();
    let rest = scene.leave_incomplete(&[7; HALF]);
    let error = scene.pull(REPO).unwrap_err();
    assert!(matches!(error, PullError::WrongHash { .. }), "{error}");
    assert!(!rest.exists(), "kept, it would fail each later pull");
    scene.pull(REPO).unwrap();
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn blob_of_a_wrong_length_is_fetched_again() {
    let scene = Scene::with_model();
    let blob = scene.repo().join("blobs").join(etag(WEIGHTS, &weights()));
    fs::create_dir_all(blob.parent().unwrap()).unwrap();
    fs::write(&blob, b"cut off").unwrap();
    scene.pull(REPO).unwrap();
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

/// Changes one byte of a blob and keeps its length.
fn damage(scene: &Scene, name: &str, content: &[u8]) {
    let blob = scene.repo().join("blobs").join(etag(name, content));
    let mut bytes = fs::read(&blob).unwrap();
    bytes[0] ^= 1;
    fs::write(&blob, bytes).unwrap();
}

#[test]
fn damaged_files_of_the_cache_are_found_by_their_hashes_and_fetched_again() {
    for lists_names_alone in [false, true] {
        for (name, content) in [(WEIGHTS, weights()), ("config.json", b"{}".to_vec())] {
            let scene = Scene::with_model();
            if lists_names_alone {
                scene.hub.list_names_alone();
            }
            scene.pull(REPO).unwrap();
            damage(&scene, name, &content);
            let progress = Recorder::default();
            scene.pull_watched(REPO, &progress).unwrap();
            assert_eq!(progress.events("Damaged").len(), 1, "{name} {lists_names_alone}");
            assert_eq!(progress.events("Started").len(), 1, "{name} {lists_names_alone}");
            assert_eq!(scene.snapshot_file(name), content, "{name} {lists_names_alone}");
        }
    }
}

#[test]
fn damaged_blob_without_a_link_is_fetched_again() {
    let scene = Scene::with_model();
    scene.pull(REPO).unwrap();
    fs::remove_dir_all(scene.repo().join("snapshots")).unwrap();
    damage(&scene, WEIGHTS, &weights());
    scene.pull(REPO).unwrap();
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn copy_that_is_damaged_is_replaced() {
    let scene = Scene::with_model();
    let snapshot = scene.pull(REPO).unwrap();
    // A system without links has copies of blobs.
    let file = snapshot.join("config.json");
    fs::remove_file(&file).unwrap();
    fs::write(&file, b"[]").unwrap();
    scene.pull(REPO).unwrap();
    assert_eq!(scene.snapshot_file("config.json"), b"{}");
}

#[test]
fn lost_blob_is_fetched_again() {
    let scene = Scene::with_model();
    scene.pull(REPO).unwrap();
    fs::remove_file(scene.repo().join("blobs").join(etag(WEIGHTS, &weights()))).unwrap();
    scene.pull(REPO).unwrap();
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[cfg(unix)]
#[test]
fn link_that_leads_nowhere_is_made_again() {
    let scene = Scene::with_model();
    let snapshot = scene.repo().join("snapshots").join(SHA);
    fs::create_dir_all(&snapshot).unwrap();
    std::os::unix::fs::symlink("../../blobs/gone", snapshot.join(WEIGHTS)).unwrap();
    scene.pull(REPO).unwrap();
    let target = Path::new("../../blobs").join(etag(WEIGHTS, &weights()));
    assert_eq!(fs::read_link(snapshot.join(WEIGHTS)).unwrap(), target);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn server_that_ignores_ranges_restarts_from_zero() {
    let scene = Scene::with_model();
    scene.leave_incomplete(&weights()[..HALF]);
    scene.hub.always(Server::Cdn, "GET", WEIGHTS, Fault::IgnoreRange);
    scene.pull(REPO).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS), [range(HALF)]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn server_that_shifts_ranges_restarts_from_zero() {
    let scene = Scene::with_model();
    scene.leave_incomplete(&weights()[..HALF]);
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::ShiftRange(5));
    scene.pull(REPO).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS), [range(HALF), None]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn server_that_refuses_the_range_restarts_from_zero() {
    let scene = Scene::with_model();
    scene.leave_incomplete(&weights()[..HALF]);
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::Status(416, ""));
    scene.pull(REPO).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS), [range(HALF), None]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn answer_without_a_length_is_checked_by_its_bytes() {
    let scene = Scene::with_model();
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::NoLength);
    scene.pull(REPO).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS), [None]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}

#[test]
fn stalled_server_is_left_and_asked_again() {
    let mut scene = Scene::with_model();
    scene.limits.stall = Duration::from_millis(500);
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::StallAfter(1000));
    let progress = Recorder::default();
    scene.pull_watched(REPO, &progress).unwrap();
    assert_eq!(scene.hub.content_requests(WEIGHTS)[..2], [None, range(1000)]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
    let retries = progress.events("Retrying");
    assert!(retries[0].contains("time limit"), "{retries:?}");
}

/// Sends a message when a pull waits for another one.
struct Watch(mpsc::Sender<()>);

impl Progress for Watch {
    fn report(&self, event: Event<'_>) {
        if matches!(event, Event::Waiting { file: WEIGHTS }) {
            self.0.send(()).unwrap();
        }
    }
}

#[test]
fn two_pulls_at_once_fetch_each_blob_once() {
    let scene = Scene::with_model();
    scene.hub.fault(Server::Cdn, "GET", WEIGHTS, Fault::Hold);
    let (sender, waits) = mpsc::channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| scene.pull(REPO));
        scene.hub.wait_for_request(Server::Cdn, "GET", WEIGHTS);
        let scene = &scene;
        let second = scope.spawn(move || scene.pull_watched(REPO, &Watch(sender)));
        // The first pull holds the lock until its delayed response arrives, so the second one must
        // wait.
        let waited = waits.recv_timeout(Duration::from_secs(10));
        scene.hub.open_gate();
        let (first, second) = (first.join().unwrap().unwrap(), second.join().unwrap().unwrap());
        assert_eq!(first, second);
        waited.expect("the second pull does not wait for the first");
    });
    assert_eq!(scene.hub.content_requests(WEIGHTS), [None]);
    assert_eq!(scene.snapshot_file(WEIGHTS), weights());
}
