//! Child processes that end with the test that started them, even if it is killed.

use std::process::{Child, Command, Stdio};

/// Kills a process when this process ends in any way. Dropping the guard before that disarms it.
pub struct DieWithUs(Child);

impl DieWithUs {
    /// Guards a child. A shell waits for the end of a pipe that only this process holds open.
    pub fn new(child: &Child) -> Self {
        let guard = Command::new("sh")
            .args(["-c", "read -r _; kill -9 \"$1\"", "sh", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(guard.expect("a shell"))
    }
}

impl Drop for DieWithUs {
    fn drop(&mut self) {
        // The shell is killed before the pipe closes, because the child's pid may soon belong to
        // another process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::env;
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    const IS_VICTIM: &str = "WEFT_TEST_IS_VICTIM";

    /// Run by the test below, which kills it.
    #[test]
    fn victim() {
        if env::var_os(IS_VICTIM).is_none() {
            return;
        }
        let mut child = Command::new("sleep").arg("300").stdout(Stdio::null()).spawn().unwrap();
        let _guard = DieWithUs::new(&child);
        println!("child {}", child.id());
        child.wait().unwrap();
    }

    fn lives(pid: &str) -> bool {
        // A zombie counts as dead.
        let status = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
        status.is_ok_and(|status| !status.contains(") Z"))
    }

    #[test]
    fn a_child_dies_with_a_test_that_is_killed() {
        let mut victim = Command::new(env::current_exe().unwrap())
            .args(["die_with_us::tests::victim", "--exact", "--nocapture"])
            .env(IS_VICTIM, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let pid = lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once("child ").map(|(_, pid)| pid.to_owned()));
        let pid = pid.expect("the child's number");
        assert!(lives(&pid));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let killed = Instant::now();
        while lives(&pid) {
            assert!(killed.elapsed() < Duration::from_secs(10), "{pid} outlives its test");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
