//! `weft chat` on a terminal: editing, completion, Ctrl-C, and errors.

use crate::Step::{Expect, Send};
use crate::{at_terminal, home};

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

#[test]
fn ctrl_c_clears_the_line_and_then_says_how_to_leave() {
    let steps = [
        Expect("weft-tiny> "),
        Send("/nonsense"),
        Expect("/nonsense"),
        Send(CTRL_C),
        // A new, empty line.
        Expect("weft-tiny> "),
        Send("/stats\r"),
        Expect("no answer yet"),
        Expect("weft-tiny> "),
        Send(CTRL_C),
        Expect("Ctrl-D leaves"),
        Expect("weft-tiny> "),
        Send(CTRL_D),
    ];
    let (code, shown) = at_terminal(home().path(), &["chat"], &steps);
    assert_eq!(code, 0, "{shown}");
    assert_eq!(shown.matches("Ctrl-D leaves").count(), 1, "{shown}");
    assert!(!shown.contains("not a command"), "the line was discarded: {shown}");
}

#[test]
fn ctrl_c_ends_an_answer_without_a_trace_of_the_key() {
    let steps = [
        Expect("weft-tiny> "),
        Send("hello\r"),
        Expect("hello"),
        Expect("\n"),
        // The first word of an answer that would take minutes.
        Expect(" "),
        Send(CTRL_C),
        Expect("cancelled"),
        Expect("weft-tiny> "),
        Send("/quit\r"),
    ];
    let args = ["chat", "--kernels", "reference", "--ignore-eos", "--temp", "0"];
    let (code, shown) = at_terminal(home().path(), &args, &steps);
    assert_eq!(code, 0, "{shown}");
    assert!(!shown.contains("^C"), "{shown}");
}

#[test]
fn tab_completes_commands_files_and_names() {
    let steps = [
        Expect("weft-tiny> "),
        Send("/con\t"),
        Expect("/context "),
        Send("nus\t"),
        Expect("nusonix.txt"),
        Send("\r"),
        Expect("nusonix.txt: 113 tokens, before the next message"),
        Expect("weft-tiny> "),
        Send("/drop n\t\r"),
        Expect("nusonix.txt is removed"),
        Expect("weft-tiny> "),
        Send("/context ~/krog\t\r"),
        Expect("krogaste.txt: "),
        Expect("weft-tiny> "),
        Send(CTRL_D),
    ];
    let (code, shown) = at_terminal(home().path(), &["chat"], &steps);
    assert_eq!(code, 0, "{shown}");
}

#[test]
fn errors_look_like_errors_and_name_the_nearest_command() {
    let red = "\x1b[1;31mweft: error:\x1b[0m ";
    let steps = [
        Expect("weft-tiny> "),
        Send("/contxt x\r"),
        Expect(red),
        Expect("did you mean /context?"),
        Expect("weft-tiny> "),
        Send("/context absent.txt\r"),
        Expect(red),
        Expect("neither a file nor a chunk"),
        Expect("weft-tiny> "),
        Send(CTRL_D),
    ];
    let (code, shown) = at_terminal(home().path(), &["chat"], &steps);
    assert_eq!(code, 0, "{shown}");
}

#[test]
fn documents_of_the_command_line_stand_before_the_first_message() {
    let steps = [
        Expect("krogaste.txt: "),
        Expect("nusonix.txt: "),
        Expect("weft-tiny> "),
        Send("Who is the ruler of Nusonix?\r"),
        Expect("Vubegok"),
        Expect("weft-tiny> "),
        Send(CTRL_D),
    ];
    let args = ["chat", "weft-tiny", "--context", "krogaste.txt", "nusonix.txt"];
    let (code, shown) = at_terminal(home().path(), &args, &steps);
    assert_eq!(code, 0, "{shown}");
    for (args, says) in [
        (&["chat", "--context", "-"][..], "cannot be a document"),
        (&["chat", "weft-tiny", "absent.txt"], "is not a file"),
        (&["chat", "absent.txt"], "neither a model nor a file"),
        (&["chat", "llama3.2"], "did you mean meta-llama/Llama-3.2-1B-Instruct?"),
    ] {
        let (code, shown) = at_terminal(home().path(), args, &[Expect(says)]);
        assert_eq!(code, 2, "{shown}");
    }
}
