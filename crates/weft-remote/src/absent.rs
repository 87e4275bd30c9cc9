//! Keys that the store did not have a moment ago, so that it is not asked for each of them again
//! with every prompt.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weft_core::store::KvKey;

/// How long an absence is believed. Another machine may store the rows meanwhile.
const BELIEVED: Duration = Duration::from_secs(30);

/// Keys at most. Each takes about 60 bytes.
const MOST: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Absent {
    until: HashMap<KvKey, Instant>,
}

impl Absent {
    pub(crate) fn add(&mut self, key: &KvKey, now: Instant) {
        if self.until.len() >= MOST {
            self.until.retain(|_, until| *until > now);
        }
        // If there are still as many, the store is asked again; that costs only time.
        if self.until.len() < MOST {
            self.until.insert(*key, now + BELIEVED);
        }
    }

    pub(crate) fn remove(&mut self, key: &KvKey) {
        self.until.remove(key);
    }

    pub(crate) fn has(&self, key: &KvKey, now: Instant) -> bool {
        self.until.get(key).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> KvKey {
        KvKey::of_rows(&KvKey::NOTHING, &[n as u32])
    }

    #[test]
    fn an_absence_is_believed_for_a_while() {
        let (mut absent, now) = (Absent::default(), Instant::now());
        absent.add(&key(1), now);
        assert!(absent.has(&key(1), now) && !absent.has(&key(2), now));
        assert!(!absent.has(&key(1), now + BELIEVED));
        absent.remove(&key(1));
        assert!(!absent.has(&key(1), now));
    }

    #[test]
    fn memory_is_bounded_and_old_absences_make_room() {
        let (mut absent, now) = (Absent::default(), Instant::now());
        (0..=MOST).for_each(|n| absent.add(&key(n), now));
        assert_eq!(absent.until.len(), MOST);
        absent.add(&key(MOST), now + BELIEVED);
        assert_eq!(absent.until.len(), 1);
        assert!(absent.has(&key(MOST), now + BELIEVED));
    }
}
