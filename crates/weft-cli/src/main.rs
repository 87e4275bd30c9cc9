#[allow(dead_code, unused_imports, reason = "no command calls it yet")]
mod pull;

fn main() {}
