//! Chunks on the bundled model: answers stay right however documents are reused, exact reuse has no
//! drift at all, and the report names the document that an answer came from.

#[path = "../examples/eval_chunks.rs"]
mod eval_chunks;

use eval_chunks::{WAYS, evaluate};
use weft_core::chunk::Reuse;

#[test]
fn reused_documents_in_another_order_are_answered_from() {
    let n = 6;
    let table = evaluate(n, false).unwrap();
    for ((reuse, repair), row) in WAYS.iter().zip(&table.rows) {
        assert!(row.right * 100 >= n * 90, "{reuse}, {repair}: {} of {n} right", row.right);
        assert!(row.found * 100 >= n * 80, "{reuse}, {repair}: {} of {n} found", row.found);
        match reuse {
            Reuse::Exact => assert_eq!(row.divergence(), 0.0, "warm is cold"),
            _ => assert!(row.divergence() > 0.0, "{reuse}, {repair}: approximate, and it shows"),
        }
    }
    // Approximate reuse recomputes only the repaired rows.
    let recomputed: Vec<f64> = table.rows.iter().map(eval_chunks::Row::recomputed).collect();
    assert!(recomputed[0] > 0.5 && recomputed[1] == 0.0 && recomputed[5] == 0.0, "{recomputed:?}");
    assert!(recomputed[2] > 0.0 && recomputed[3] > recomputed[2], "{recomputed:?}");
}
