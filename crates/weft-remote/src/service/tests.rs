//! What the service remembers of fetches, without a store.

use super::*;

#[test]
fn only_so_many_damaged_entries_are_remembered() {
    let mut state = State::default();
    for n in 0..2 * MOST_DAMAGED {
        let pass = state.reads.admit(Instant::now()).expect("a store that answers");
        let key = KvKey::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes());
        state.count_fetch(&key, Err(Miss::ManifestChecksum), 0, pass);
    }
    assert_eq!(state.damaged.len(), MOST_DAMAGED);
    assert_eq!(state.stats.misses, 2 * MOST_DAMAGED as u64, "all are counted");
}
