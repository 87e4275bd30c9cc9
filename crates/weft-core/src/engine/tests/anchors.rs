//! Anchored prompts whose first text changes: what stands before the anchor moves it, and costs
//! nothing else.

use super::*;

fn anchored(kind: Kind, n: usize, seed: u32) -> Piece {
    Piece { reuse: Reuse::Anchored, ..Piece::exact(kind, tokens(n, seed)) }
}

/// An agent's prompt: the template's first tokens, a block that changes, the block that others
/// attend to, and messages.
fn prompt(changing: Piece, messages: &[u32], repair: Repair) -> Composition {
    let lead = Piece::exact(Kind::System, tokens(3, 9));
    let anchor = Piece { is_anchor: true, ..anchored(Kind::System, 70, 8) };
    let messages = messages.iter().map(|seed| Piece { reuse: Reuse::Anchored, ..document(*seed) });
    let pieces = [lead, changing, anchor].into_iter().chain(messages).chain([query(1)]).collect();
    Composition { pieces, repair }
}

fn changing(seed: u32) -> Piece {
    anchored(Kind::System, 10 + seed as usize * 3, seed)
}

#[test]
fn a_block_that_changes_costs_itself_alone() {
    let mut engine = engine();
    for (turn, seed) in (20..25).enumerate() {
        let prompt = prompt(changing(seed), &[1, 2, 3], Repair::None);
        let (tokens, finished) = ask(&mut engine, &prompt);
        assert_eq!(tokens, cold(&prompt), "turn {turn}");
        let own = changing(seed).tokens.len() + query(1).tokens.len();
        let kept = if turn == 0 { 0 } else { prompt.len() - own };
        assert_eq!(finished.stats.cached_tokens, kept, "turn {turn}");
        let shift = changing(seed).tokens.len() as i64;
        let shifts: Vec<i64> = finished.report.pieces.iter().map(|piece| piece.shift).collect();
        assert_eq!(shifts[..3], [0, 0, shift], "the anchor stands behind the changing block");
    }
}

/// The rows of an anchored message are those of the exact prompt *anchor, message*.
#[test]
fn a_message_attends_to_the_anchor_as_if_nothing_stood_before_it() {
    let mut engine = engine();
    let agent = prompt(changing(20), &[1, 2], Repair::None);
    ask(&mut engine, &agent);
    for message in [3, 4] {
        let pieces = [0, 2, message].map(|at| Piece::exact(Kind::Context, tokens_of(&agent, at)));
        let pieces: Vec<Piece> = pieces.into_iter().chain([query(2)]).collect();
        let plain = Composition { pieces, repair: Repair::None };
        let (answer, finished) = ask(&mut engine, &plain);
        assert_eq!(answer, cold(&plain));
        assert_eq!(finished.stats.cached_tokens, plain.len() - query(2).tokens.len());
    }
}

fn tokens_of(prompt: &Composition, piece: usize) -> Vec<u32> {
    prompt.pieces[piece].tokens.clone()
}

/// An anchor at the start of the prompt is the system prompt, as it always was.
#[test]
fn an_anchor_that_nothing_moves_is_exact() {
    let mut engine = engine();
    let mut agent = prompt(changing(20), &[1, 2], Repair::None);
    agent.pieces.remove(1);
    let mut plain = agent.clone();
    plain.pieces.drain(..2);
    let system = agent.pieces[..2].iter().flat_map(|piece| piece.tokens.clone()).collect();
    plain.pieces.insert(0, Piece::exact(Kind::System, system));
    let (first, _) = ask(&mut engine, &plain);
    let (again, finished) = ask(&mut engine, &agent);
    assert_eq!(again, first);
    assert_eq!(finished.stats.cached_tokens, agent.len());
}

#[test]
fn repairs_leave_the_anchor_and_what_is_kept_alone() {
    for repair in [Repair::Link(8), Repair::Blend(0.3, 1)] {
        let mut engine = engine();
        for seed in [20, 21] {
            let repaired = prompt(changing(seed), &[1, 2], repair);
            let (tokens, finished) = ask(&mut engine, &repaired);
            assert_eq!(tokens, cold(&repaired), "{repair}");
            let repaired_tokens: Vec<usize> =
                finished.report.pieces.iter().map(|piece| piece.repaired_tokens).collect();
            assert_eq!(repaired_tokens[..3], [0; 3], "{repair}");
            assert!(repaired_tokens[3..].iter().any(|n| *n > 0), "{repair}");
            let plain = prompt(changing(seed), &[1, 2], Repair::None);
            assert_eq!(ask(&mut engine, &plain).0, cold(&plain), "{repair}");
        }
    }
}

#[test]
fn any_order_of_what_is_asked_gives_the_bits_of_a_cold_run() {
    let seeds = (prop::collection::vec(1_u32..6, 0..4), 20_u32..24, prop::bool::ANY);
    TestRunner::new(Cases::with_cases(8))
        .run(&prop::collection::vec(seeds, 1..4), |asked| {
            let mut engine = engine();
            for (messages, block, has_anchor) in asked {
                let mut prompt = prompt(changing(block), &messages, Repair::None);
                prompt.pieces[2].is_anchor = has_anchor;
                prop_assert_eq!(ask(&mut engine, &prompt).0, cold(&prompt));
            }
            Ok(())
        })
        .unwrap();
}
