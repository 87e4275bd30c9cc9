//! The registry's limits: on memory that is promised, on requests that wait for a load, and on the
//! names that are logged.

use std::task::Poll;

use super::*;

/// What a model reserves and has not taken yet still looks free to the system.
#[tokio::test(flavor = "multi_thread")]
async fn memory_that_is_promised_is_not_given_to_another_model() {
    let machine = Machine::new(Some(130));
    machine.lazy.store(1 << 40, Ordering::Relaxed);
    let registry = registry(&machine, |_| {});
    ask(&registry, "a").await;
    ask(&registry, "b").await;
    assert_eq!(machine.alive(), ["b"]);
}

/// Requests that wait while a model is blocked, as many as may.
macro_rules! waiting {
    ($registry:expr, $machine:expr, $name:literal) => {{
        $machine.block($name);
        let mut waiting: Vec<_> =
            (0..QUEUE).map(|_| Box::pin($registry.open(Some($name)))).collect();
        for one in &mut waiting {
            assert!(poll!(&mut *one).is_pending());
        }
        waiting
    }};
}

/// The refusal that a request gets without waiting.
macro_rules! refused_at_once {
    ($registry:expr, $name:literal) => {{
        let mut opening = Box::pin($registry.open(Some($name)));
        let Poll::Ready(Err(error)) = poll!(&mut opening) else { panic!("it waits") };
        error.status().as_u16()
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_requests_wait_for_a_load_than_for_a_lane() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |_| {});
    let mut waiting = waiting!(registry, machine, "a");
    assert_eq!(refused_at_once!(registry, "a"), 429);
    assert_eq!(registry.slots()[0].users, QUEUE);
    // Who leaves makes room for another.
    waiting.pop();
    waiting.push(Box::pin(registry.open(Some("a"))));
    assert!(poll!(waiting.last_mut().unwrap()).is_pending());
    machine.unblock("a");
    for one in waiting {
        tokio::time::timeout(PATIENCE, one).await.unwrap().unwrap();
    }
    assert_eq!(machine.loads(), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_waited_for_a_failed_load_keep_their_places_until_they_leave() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |_| {});
    let waiting = waiting!(registry, machine, "broken");
    machine.unblock("broken");
    until("it has failed", || status(&registry, "broken") == "unloaded").await;
    assert_eq!(refused_at_once!(registry, "broken"), 429);
    drop(waiting);
    assert!(open(&registry, "broken").await.err().unwrap().starts_with("503 "));
    assert_eq!(machine.loads(), ["broken", "broken"], "a refused request loads nothing");
}

#[tokio::test]
async fn names_of_other_models_are_cut_and_only_the_first_are_logged() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let registry = || {
        let lines = Arc::clone(&lines);
        let log = Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()));
        registry_of(&["a"], &Machine::new(None), |settings| settings.log = log)
    };
    let many = registry();
    for n in (0..100).chain(0..100) {
        many.find(Some(&format!("other-{n}"))).await.unwrap();
    }
    let logged = std::mem::take(&mut *lines.lock().unwrap());
    assert_eq!(logged.len(), 32);
    assert!(logged[0].contains("\"other-0\"") && logged[0].contains("a answers"), "{logged:?}");
    let long = registry();
    for n in 0..2 {
        long.find(Some(&format!("{}{n}", "ä".repeat(1000)))).await.unwrap();
    }
    let logged = lines.lock().unwrap();
    assert_eq!(logged.len(), 1, "they begin alike: {logged:?}");
    assert_eq!(logged[0].matches('ä').count(), 80);
}
