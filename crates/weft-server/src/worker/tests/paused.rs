//! A lane that is paused in the middle of its prompt, beside one that needs the same rows.

use weft_core::chunk::Reuse;

use super::*;

/// A prompt of so many pieces that each take a step, and of a document that takes twelve.
fn prompt(own: u32) -> Composition {
    let alone = |token: u32| Piece {
        reuse: Reuse::Isolated,
        ..Piece::exact(Kind::Context, vec![token % 200 + 1, token / 200 + 1])
    };
    let document = Piece::exact(Kind::Context, vec![4; 12 * 256]);
    let query = Piece::exact(Kind::Query, vec![own; 3]);
    let pieces = (0..EVENTS as u32 - 6).map(alone).chain([document, query]).collect();
    Composition { pieces, repair: Repair::None }
}

fn ask(own: u32, sends_progress: bool) -> Job {
    let sampling = Sampling { max_tokens: Some(5), temperature: 0.0, ..Sampling::default() };
    Job::Answer { request: Box::new(Request::new(prompt(own), sampling)), sends_progress }
}

#[test]
fn a_lane_that_is_paused_in_its_prompt_holds_up_no_other() {
    let bench = bench();
    bench.control.step_us.store(0, Ordering::Relaxed);
    let mut paused = bench.submit_job(ask(5, true)).unwrap();
    bench.until("it is behind", || paused.events.len() == EVENTS);
    let start = Instant::now();
    let mut other = bench.submit_job(ask(6, false)).unwrap();
    bench.until("the other has ended", || {
        bench.metric("weft_answers_total{reason=\"length\"}") == 1
    });
    assert!(start.elapsed() < LIMITS.slow_reader / 4, "{:?}", start.elapsed());
    assert_eq!(end(&mut other), (5, Ok(())));
    assert_eq!(end(&mut paused), (5, Ok(())));
}
