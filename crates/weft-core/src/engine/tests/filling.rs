//! The number of steps of a prompt without cached rows.

use super::*;

/// The prompt tokens done after each step.
fn progress(engine: &mut Engine, prompt: Composition) -> Vec<usize> {
    engine.add(Request::new(prompt, sampling())).unwrap();
    let mut progress = Vec::new();
    loop {
        for event in engine.step().unwrap() {
            match event {
                Event::Prefill { done, .. } => progress.push(done),
                Event::Done { .. } => return progress,
                _ => {}
            }
        }
    }
}

fn pieces(n: usize, len: usize) -> Composition {
    let piece = |seed: usize| Piece::exact(Kind::Context, tokens(len, seed as u32 + 1));
    Composition { pieces: (0..n).map(piece).collect(), repair: Repair::None }
}

#[test]
fn many_short_pieces_take_no_more_steps_than_one_long_one() {
    assert_eq!(progress(&mut engine(), pieces(12, 10)), [64, 120]);
    assert_eq!(progress(&mut engine(), pieces(1, 120)), [64, 120]);
}

#[test]
fn what_is_kept_is_not_computed_again() {
    let mut engine = engine();
    progress(&mut engine, pieces(3, 10));
    // Three pieces are cached; the fourth starts after them.
    assert_eq!(progress(&mut engine, pieces(12, 10)), [94, 120]);
}

#[test]
fn pieces_that_see_less_are_computed_apart() {
    let mut prompt = pieces(4, 10);
    prompt.pieces[1].reuse = Reuse::Isolated;
    prompt.pieces[2].reuse = Reuse::Isolated;
    assert_eq!(progress(&mut engine(), prompt), [10, 20, 30, 40]);
}
