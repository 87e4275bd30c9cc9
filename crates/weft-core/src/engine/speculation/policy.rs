//! How much a lane drafts, and when it drafts nothing.
//!
//! A draft pays if the tokens that it is expected to bring outweigh the longer step. Guesses can be
//! wrong for long, so each lane also has an account, in plain steps of one token: it starts with a
//! small credit, pays for drafts that fail and earns with drafts that succeed. An answer of 512
//! tokens can therefore lose no more than the credit and what comes in with time, together less
//! than 2 %, whatever its text. After a failure the lane waits, twice as long each time.

/// Tokens of an answer over which drafts may lose at most 2 %.
#[cfg(test)]
const HORIZON: usize = 512;
/// What an account starts with, and what each token of the answer adds, in plain steps.
const CREDIT: f64 = 4.0;
const INCOME: f64 = 0.008;
/// The most that an account holds.
const MOST: f64 = 8.0;
/// The smallest gain that a draft is made for.
const LEAST_GAIN: f64 = 1.03;
/// The smallest odds that a lane without losses counts with.
const LEAST_HOPE: f64 = 0.3;
/// Tokens that a lane waits after one failure, and the number of times that this doubles.
const FIRST_WAIT: usize = 1;
const MAX_DOUBLINGS: u32 = 6;

/// A lane's account.
pub(super) struct Account {
    balance: f64,
    n_failures: u32,
    wait: usize,
}

impl Default for Account {
    fn default() -> Self {
        Self { balance: CREDIT, n_failures: 0, wait: 0 }
    }
}

impl Account {
    /// Whether the lane may draft now.
    pub(super) fn is_open(&self) -> bool {
        self.wait == 0
    }

    /// Whether it can pay for a draft that fails.
    pub(super) fn affords(&self, loss: f64) -> bool {
        self.balance >= loss
    }

    /// The odds to count with. A lane that has not lost anything tries again what has failed
    /// before: the text may be another one now.
    pub(super) fn hope(&self, odds: f64) -> f64 {
        if self.balance >= CREDIT { odds.max(LEAST_HOPE) } else { odds }
    }

    /// Counts tokens of the answer.
    pub(super) fn pass(&mut self, n_tokens: usize) {
        self.wait = self.wait.saturating_sub(n_tokens);
        self.balance = (self.balance + INCOME * n_tokens as f64).min(MOST);
    }

    /// Takes the result of a draft: accepted tokens, and the cost of the step beyond a plain one.
    pub(super) fn settle(&mut self, n_accepted: usize, cost: f64) {
        self.balance = (self.balance + n_accepted as f64 - cost).min(MOST);
        if n_accepted > 0 {
            self.n_failures = 0;
            return;
        }
        self.wait = FIRST_WAIT << self.n_failures.min(MAX_DOUBLINGS);
        self.n_failures += 1;
    }
}

/// The number of tokens to draft, at most `max`, if each is right with probability `odds` and a
/// step with `n` of them costs `ratio(n)` plain steps of `n_lanes` lanes: the number with the
/// largest gain, and the gain. `None` if no draft pays.
pub(super) fn best_length(
    odds: f64,
    max: usize,
    n_lanes: usize,
    ratio: impl Fn(usize) -> f64,
) -> Option<(usize, f64)> {
    let (mut best, mut expected, mut right) = (None, 0.0, 1.0);
    for n in 1..=max {
        right *= odds;
        expected += right;
        let gain = (n_lanes as f64 + expected) / (n_lanes as f64 * ratio(n));
        if gain > best.map_or(LEAST_GAIN, |(_, gain)| gain) {
            best = Some((n, gain));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_follows_odds_and_costs() {
        let cheap = |n: usize| 1.0 + 0.05 * n as f64;
        assert_eq!(best_length(0.99, 7, 1, cheap).unwrap().0, 7);
        let few = best_length(0.5, 7, 1, cheap).unwrap().0;
        assert!((1..5).contains(&few), "{few}");
        assert_eq!(best_length(0.02, 7, 1, cheap), None);
        let dear = |n: usize| 1.0 + n as f64;
        assert_eq!(best_length(0.99, 7, 1, dear), None, "no draft pays by itself");
        assert_eq!(best_length(0.9, 0, 1, cheap), None);
        // Eight lanes wait for one draft.
        assert!(best_length(0.5, 7, 8, cheap).is_none_or(|(_, gain)| gain < 1.1));
    }

    /// Drafts that all fail, each at the cost of a whole plain step or less, lose less than 2 %.
    #[test]
    fn an_answer_loses_less_than_two_percent_whatever_its_text() {
        for cost in [0.02, 0.1, 0.35, 0.6, 1.0] {
            let (mut account, mut lost, mut n_drafts) = (Account::default(), 0.0, 0);
            for _ in 0..HORIZON {
                if account.is_open() && account.affords(cost) {
                    account.settle(0, cost);
                    lost += cost;
                    n_drafts += 1;
                }
                account.pass(1);
            }
            assert!(lost < 0.02 * HORIZON as f64, "{lost} at {cost}");
            assert!((4..20).contains(&n_drafts), "it tries now and then, and waits: {n_drafts}");
        }
    }

    #[test]
    fn what_failed_before_is_tried_again_as_long_as_nothing_is_lost() {
        let mut account = Account::default();
        assert!(account.hope(0.01) > 0.2 && account.hope(0.9) == 0.9);
        account.settle(0, 0.5);
        assert!(account.hope(0.01) < 0.02);
        account.pass(70);
        assert!(account.hope(0.01) > 0.2, "losses are made up for with time");
    }

    /// A long answer does not save up for many drafts that fail.
    #[test]
    fn an_account_holds_only_so_much() {
        let mut account = Account::default();
        account.pass(1_000_000);
        assert!(account.affords(MOST) && !account.affords(MOST + 0.01));
        account.settle(1000, 0.0);
        assert!(account.affords(MOST) && !account.affords(MOST + 0.01));
    }

    #[test]
    fn a_success_ends_the_waiting() {
        let mut account = Account::default();
        for wait in [1, 2, 4, 8] {
            account.settle(0, 0.1);
            assert_eq!(account.wait, wait);
            account.pass(wait);
            assert!(account.is_open());
        }
        account.settle(3, 0.2);
        assert!(account.is_open());
        account.settle(0, 0.1);
        assert_eq!(account.wait, 1);
    }
}
