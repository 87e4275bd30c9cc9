//! The examples do what they say, on the bundled model.
#![allow(clippy::duplicate_mod, reason = "each example is a program of its own, with its own copy")]

#[path = "../examples/agents.rs"]
mod agents;
#[path = "../examples/conversation.rs"]
mod conversation;
#[path = "../examples/rag.rs"]
mod rag;

#[test]
fn a_retrieval_loop_answers_and_computes_documents_once() {
    let answered = rag::run(5).unwrap();
    let right = answered.iter().filter(|answer| answer.is_right).count();
    assert!(right >= 8, "{right} of 10 right");
    let (first, again) = answered.split_at(5);
    assert!(first[0].tokens.1 < first[0].tokens.0 / 2, "the first question finds hardly anything");
    assert!(again.iter().all(|answer| answer.tokens.1 == answer.tokens.0), "the second all");
}

#[test]
fn two_agents_share_the_rows_of_their_documents() {
    for round in agents::run(3).unwrap() {
        // Documents once, and of each agent its system prompt and its question.
        let once = round.tokens / 2 + 60;
        assert!(round.computed <= once, "{} of {} tokens", round.computed, round.tokens);
        let [word, sentence] = &round.answers[..] else { panic!("two agents") };
        assert!(sentence.len() > word.len() && sentence.contains(&**word), "{word}: {sentence}");
    }
}

#[test]
fn each_turn_of_a_conversation_computes_only_what_is_new() {
    let talk = conversation::run(3).unwrap();
    assert_eq!(talk.turns[0].1, 0);
    for (before, turn) in talk.turns.iter().zip(&talk.turns[1..]) {
        assert!(turn.1 >= before.0, "{turn:?} after {before:?}: the whole turn before is kept");
    }
    assert!(!talk.kept.1.is_empty());
}
