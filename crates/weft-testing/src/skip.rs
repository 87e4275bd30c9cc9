//! Tests that cannot run on this machine report it here, so that they are counted as skipped.
//!
//! The test harness knows only passed and failed. If a requirement is missing, a test calls
//! [`skip`] and returns. One line with the reason goes to the file that `WEFT_SKIPPED` names.
//! `tools/run_test.py` sums up these lines after each test program, and `.ci/run` at the end.

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;

/// A missing requirement of a test.
#[derive(Clone, Copy, Debug)]
pub enum Missing {
    Gpu,
    Nvrtc,
    /// Qwen3's `tokenizer.json`, which is not in the repository.
    Tokenizer,
    /// The right to mount a disk.
    Mount,
    /// A reason to run again: what is tested passed before, exactly as it is now.
    Change,
}

impl Missing {
    /// The reason that is counted, and the variable that turns the skip into a failure if it is 1.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Gpu => ("no GPU", "WEFT_REQUIRE_GPU"),
            Self::Nvrtc => ("no NVRTC", "WEFT_REQUIRE_NVRTC"),
            Self::Tokenizer => ("no Qwen3 tokenizer", "WEFT_REQUIRE_TOKENIZER"),
            Self::Mount => ("no mount", "WEFT_REQUIRE_MOUNT"),
            Self::Change => ("kernels unchanged", "WEFT_EVERY_KERNEL"),
        }
    }
}

/// Reports that the calling test does not run. The caller returns at once.
///
/// # Panics
/// If the variable for this requirement is 1.
pub fn skip(missing: Missing, detail: &dyn Display) {
    let (reason, required) = missing.names();
    let is_required = env::var(required).is_ok_and(|value| value == "1");
    assert!(!is_required, "{reason}, and {required} is 1: {detail}");
    println!("skipped: {reason} ({detail})");
    if let Some(path) = env::var_os("WEFT_SKIPPED") {
        // The harness names each test's thread after the test.
        let line = format!("{reason}\t{}\n", thread::current().name().unwrap_or("main"));
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Run by the test below, in another process, because variables belong to a process.
    #[test]
    fn child() {
        if env::var_os("WEFT_TEST_SKIPS").is_some() {
            skip(Missing::Mount, &"for a test");
        }
    }

    #[test]
    fn a_skip_is_written_down_and_fails_if_it_is_required() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skipped");
        let run = |required: &str| {
            Command::new(env::current_exe().unwrap())
                .args(["skip::tests::child", "--exact"])
                .env("WEFT_TEST_SKIPS", "1")
                .env("WEFT_SKIPPED", &file)
                .env("WEFT_REQUIRE_MOUNT", required)
                .output()
                .unwrap()
        };
        assert!(run("0").status.success());
        let lines = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(lines(), "no mount\tskip::tests::child\n");
        assert!(!run("1").status.success());
        assert_eq!(lines().lines().count(), 1);
    }
}
