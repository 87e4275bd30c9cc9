//! Tests of the public interface that need no process of their own: one program, because each takes
//! long to link.

mod engine;
mod experts;
mod gguf;
mod golden;
mod model;
mod prompt;
mod prompt_folder;
mod prompt_templates;
mod reference;
mod sampling_sampler;
mod sampling_text;
mod tokenizer;

use std::time::Duration;

/// The time that this thread ran: what other processes on the machine take does not count.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Duration::from_nanos(nanos)
}
