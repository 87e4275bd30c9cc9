//! The bundled model answers from its context, on the CPU device, through the whole engine.

use std::path::Path;

use weft_core::weights::Coded;

#[path = "../examples/eval_tiny.rs"]
mod eval_tiny;

#[test]
fn held_out_questions_are_answered() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny");
    for form in [None, Some(Coded::int(8)), Some(Coded::int(4))] {
        let model = eval_tiny::open(&folder, form).unwrap();
        let result = eval_tiny::evaluate(&model, 50).unwrap();
        let accuracy = result.accuracy();
        assert!(accuracy >= 0.95, "{form:?}: {accuracy}, {:?}", result.mistakes);
    }
}

#[test]
fn documents_are_quoted_and_rewritten() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/weft-tiny");
    let model = eval_tiny::open(&folder, None).unwrap();
    let result = eval_tiny::evaluate_copies(&model, 24).unwrap();
    let accuracy = result.accuracy();
    assert!(accuracy >= 0.9, "{accuracy}, {:?}", result.mistakes);
}
