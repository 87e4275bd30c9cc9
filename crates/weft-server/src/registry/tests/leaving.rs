//! Models that leave: unloaded while they are used, forgotten, or failing meanwhile.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_model_that_fails_gets_its_room() {
    let machine = Machine::new(Some(60));
    let registry = registry(&machine, |_| {});
    let in_use = open(&registry, "a").await.unwrap();
    let b = tokio::spawn({
        let registry = Arc::clone(&registry);
        async move { ask(&registry, "b").await }
    });
    until("a is to leave", || registry.slots()[0].is_leaving).await;
    machine.control("a").fails.store(true, Ordering::Relaxed);
    let fails = in_use.submit(vec![job(3)]).await.unwrap();
    // It is held all the time, and b comes first nevertheless.
    tokio::time::timeout(PATIENCE, b).await.expect("it ends").unwrap();
    machine.control("a").fails.store(false, Ordering::Relaxed);
    drop((fails, in_use));
    ask(&registry, "a").await;
    assert_eq!(machine.most.load(Ordering::Relaxed), 1);
}

/// The end of a load that nobody knows any more brings nothing back.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_forgotten_stays_forgotten() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |settings| settings.allow_load = true);
    let forgotten = entry(ModelName::new("d", "d"), false);
    assert!(registry.take(&forgotten, &Weak::new()).is_none());
    assert_eq!(status(&registry, "d"), "forgotten");
}

/// Who unloads a model may hold the turn to load, and waits for the model's thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_fails_while_it_is_unloaded_waits_for_no_turn() {
    let machine = Machine::new(None);
    let registry = registry(&machine, |_| {});
    drop(open(&registry, "a").await.unwrap());
    until("a is idle", || registry.slots()[0].idle().is_some()).await;
    let (entry, served) = {
        let mut slots = registry.slots();
        let served = Registry::take_idle(&mut slots[0]).unwrap();
        (Arc::clone(&slots[0].entry), served)
    };
    let (sender, failed) = std::sync::mpsc::channel();
    let mut load = registry.load(&entry, &served.need);
    let turn = registry.loading.lock().unwrap();
    std::thread::spawn(move || sender.send(load().err().map(|failure| failure.error.to_string())));
    let failed = failed.recv_timeout(PATIENCE);
    drop(turn);
    assert_eq!(failed.unwrap().as_deref(), Some("it is being unloaded"));
    registry.end_off_thread(&entry, served).await;
}
