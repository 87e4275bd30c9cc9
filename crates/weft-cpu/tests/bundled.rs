//! The bundled model answers from its context, on the CPU device, through the whole engine.

#[path = "../examples/eval_tiny.rs"]
mod eval_tiny;

#[test]
fn held_out_questions_are_answered() {
    let result = eval_tiny::evaluate(50).unwrap();
    assert!(result.accuracy() >= 0.95, "{}: {:?}", result.accuracy(), result.mistakes);
}
