//! Every flag through every source.

use super::*;
use crate::args::ModelArgs;

fn nothing(_: &str) -> Option<OsString> {
    None
}

fn model_args(args: &[&str], file: &str) -> ModelArgs {
    let args = args.iter().map(OsString::from).collect();
    match parse_from(args, &read(file).unwrap(), &nothing).unwrap().command {
        Some(Command::Run(run)) => run.model,
        _ => panic!("not `run`"),
    }
}

#[test]
fn the_file_sets_what_the_flag_does_not() {
    let file = "ctx-size = \"32k\"\noffline = true\nmodel = \"a/b\"";
    let args = model_args(&["weft", "run", "hi"], file);
    assert_eq!((args.ctx_size, args.offline), (Some(32_768), true));
    assert_eq!(args.model.as_deref(), Some("a/b"));
    let args = model_args(&["weft", "run", "--ctx-size", "1k", "-m", "c/d", "hi"], file);
    assert_eq!((args.ctx_size, args.model.as_deref()), (Some(1024), Some("c/d")));
}

fn refused(file: &str) -> String {
    match parse_from(vec!["weft".into(), "list".into()], &read(file).unwrap(), &nothing) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_key_that_is_no_flag_is_refused_with_the_nearest() {
    assert!(refused("colour = 1").contains("`colour`"), "{}", refused("colour = 1"));
    assert!(refused("ctx_size = 1").contains("did you mean `ctx-size`?"));
    assert!(refused("temprature = 1").contains("did you mean `temperature`?"));
    assert!(refused("yes = true").contains("on the command line"));
}

#[test]
fn a_wrong_value_names_its_source() {
    let args = || ["weft", "run", "hi"].map(OsString::from).to_vec();
    let in_file = parse_from(args(), &read("ctx-size = \"x\"").unwrap(), &nothing);
    let Err(error) = in_file else { panic!("accepted") };
    assert!(error.to_string().contains("config file's `ctx-size`"), "{error}");
    let lookup = |name: &str| (name == "WEFT_CTX_SIZE").then(|| "y".into());
    let Err(error) = parse_from(args(), &[], &lookup) else { panic!("accepted") };
    assert!(error.to_string().starts_with("WEFT_CTX_SIZE: "), "{error}");
}

#[test]
fn a_file_that_is_no_toml_says_where() {
    assert!(read("ctx-size = ").unwrap_err().contains("line 1"));
    assert!(read("ctx-size = [1, 2]").unwrap_err().contains("takes one value"));
    assert!(read("stop = {a = 1}").unwrap_err().contains("`stop`"));
    let stop = ("stop".to_owned(), vec!["a".to_owned(), "b,c".to_owned()]);
    assert_eq!(read("stop = [\"a\", \"b,c\"]"), Ok(vec![stop]));
}

/// Values of which every flag takes at least one.
const VALUES: [&str; 18] = [
    "true",
    "1",
    "0.5",
    "4g",
    "10m",
    "name=model",
    "1,2",
    "cpu",
    "graph",
    "exact",
    "none",
    "json",
    "avx2",
    "int8",
    "q4_k_m",
    "127.0.0.1",
    "some/text",
    "tauri://localhost",
];

/// Calls for each command with its words, `weft` first.
fn each_command(
    command: &clap::Command,
    words: &[&str],
    visit: &mut dyn FnMut(&clap::Command, &[&str]),
) {
    visit(command, words);
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        each_command(sub, &[words, &[sub.get_name()]].concat(), visit);
    }
}

/// A command's flags after all sources were added, with at most one flag on the command line.
fn flags_of(
    words: &[&str],
    flag: Option<&str>,
    file: &[Setting],
    lookup: Lookup<'_>,
) -> ArgMatches {
    let mut command = Cli::command();
    command.build();
    let mut command = layer(command, file, lookup);
    for word in &words[1..] {
        command = command.find_subcommand(word).unwrap().clone();
    }
    let command = command.mut_args(|arg| arg.required(false)).subcommand_required(false);
    let command = command.arg_required_else_help(false);
    command.try_get_matches_from([*words.last().unwrap()].into_iter().chain(flag)).unwrap()
}

#[test]
fn every_flag_can_be_set_in_the_environment_and_in_the_file() {
    let mut n_flags = 0;
    each_command(&Cli::command(), &["weft"], &mut |command, words| {
        for arg in command.get_arguments().filter(|arg| arg.get_long().is_some()) {
            let Some(key) = settable(arg) else { continue };
            let value = VALUES.into_iter().find(|value| accepts(arg, value).is_ok());
            let value = value.unwrap_or_else(|| panic!("no value for {words:?} --{key}"));
            let is_set = |matches: &ArgMatches| {
                let id = arg.get_id().as_str();
                let raw = matches.get_raw(id).into_iter().flatten();
                let raw: Vec<_> = raw.map(|text| text.to_string_lossy().into_owned()).collect();
                if is_switch(arg) { matches.get_flag(id) } else { raw.join(",") == value }
            };
            let in_file = [(key.clone(), vec![value.to_owned()])];
            let lookup = |name: &str| (name == variable(&key)).then(|| value.into());
            // A flag whose value is optional takes its value from elsewhere, not its presence.
            let flag = is_value_optional(arg).then(|| format!("--{key}"));
            if flag.is_some() {
                assert!(!is_set(&flags_of(words, None, &in_file, &nothing)), "{words:?} --{key}");
            }
            let flag = flag.as_deref();
            let is_in_file = is_set(&flags_of(words, flag, &in_file, &nothing));
            assert!(is_in_file, "{words:?} --{key} in the file");
            let is_in_environment = is_set(&flags_of(words, flag, &[], &lookup));
            assert!(is_in_environment, "{words:?} {}", variable(&key));
            n_flags += 1;
        }
    });
    assert!(n_flags > 200, "{n_flags}");
}

#[test]
fn a_list_in_the_file_sets_a_flag_several_times() {
    let args = ["weft", "run", "hi"].map(OsString::from).to_vec();
    let file = read("stop = [\"a\", \"b,c\"]\nverbose = true").unwrap();
    let cli = parse_from(args, &file, &nothing).unwrap();
    assert!(cli.verbose, "a flag of all commands");
    let Some(Command::Run(run)) = cli.command else { panic!("not `run`") };
    assert_eq!(run.sampling.stop, ["a", "b,c"]);
}

#[test]
fn a_key_means_the_same_in_all_commands() {
    for (key, args) in keys() {
        let taken = |arg: &clap::Arg| VALUES.map(|value| accepts(arg, value).is_ok());
        for arg in &args {
            assert_eq!(taken(arg), taken(&args[0]), "--{key}: {VALUES:?}");
        }
    }
}

#[test]
fn the_readme_lists_the_flags_that_cannot_be_set() {
    let readme = include_str!("../../../../README.md");
    for name in OF_ONE_CALL {
        assert!(readme.contains(&format!("`--{name}`")), "README.md does not list --{name}");
    }
}

#[test]
fn a_misspelt_variable_is_noticed_and_those_of_others_are_not() {
    let of = |name: &str| misspelt(std::iter::once(OsString::from(name)));
    let near = |name: &str| of(name).pop().map(|(_, near)| near);
    assert_eq!(near("WEFT_CTX_SZIE").as_deref(), Some("WEFT_CTX_SIZE"));
    assert_eq!(near("WEFT_CONTEXT").as_deref(), None);
    assert_eq!(near("WEFT_THREDS").as_deref(), Some("WEFT_THREADS"));
    assert_eq!(near("WEFT_CONFG").as_deref(), Some("WEFT_CONFIG"));
    for other in [
        "WEFT_CTX_SIZE",
        "WEFT_CPU_ISA",
        "WEFT_CONFIG",
        "WEFT_SKIPPED",
        "WEFT_TEST_QWEN3",
        "WEFT_REQUIRE_GPU",
        "WEFT_TEST_LIMIT_S",
        "WEFT_TEST_GPU",
        "WEFT_TEST_TREE",
        "WEFT_BREAK",
        "WEFT_URL",
        "WEFT_TINY",
        "WEFT_COMMIT",
        "CTX_SZIE",
        "PATH",
    ] {
        assert_eq!(near(other), None, "{other}");
    }
}

#[test]
fn a_variable_of_another_name_of_a_flag_is_noticed() {
    let of = |name: &str| aliased(std::iter::once(OsString::from(name))).pop();
    let right = |name: &str| of(name).map(|(_, right)| right);
    assert_eq!(right("WEFT_TEMP").as_deref(), Some("WEFT_TEMPERATURE"));
    assert_eq!(right("WEFT_MAX_MODEL_LEN").as_deref(), Some("WEFT_CTX_SIZE"));
    for other in ["WEFT_CONTEXT", "WEFT_TEMPERATURE", "WEFT_URL", "TEMP"] {
        assert_eq!(right(other), None, "{other}");
    }
    assert!(refused("temp = 1").contains("did you mean `temperature`?"));
}

#[test]
fn a_switch_takes_true_and_false_only() {
    let is_json = |word: &'static str| {
        let lookup = move |name: &str| (name == "WEFT_JSON").then(|| word.into());
        let args = ["weft", "list"].map(OsString::from).to_vec();
        let cli = parse_from(args, &[], &lookup).map_err(|error| error.to_string())?;
        let Some(Command::List(list)) = cli.command else { panic!("not `list`") };
        Ok::<bool, String>(list.json)
    };
    assert_eq!(["1", "Yes", "on", "true"].map(is_json), [const { Ok(true) }; 4]);
    assert_eq!(["0", "no", "OFF", "false"].map(is_json), [const { Ok(false) }; 4]);
    let error = is_json("maybe").unwrap_err();
    assert!(error.starts_with("WEFT_JSON: ") && error.contains("not true or false"), "{error}");
}

#[test]
fn a_switch_on_the_command_line_wins_over_its_opposite_elsewhere() {
    let thinking = |flag: Option<&str>, file: &str| {
        let args = ["weft", "run"].into_iter().chain(flag).chain(["hi"]).map(OsString::from);
        match parse_from(args.collect(), &read(file).unwrap(), &nothing).unwrap().command {
            Some(Command::Run(run)) => run.prompt.thinking(),
            _ => panic!("not `run`"),
        }
    };
    assert_eq!(thinking(None, ""), None);
    for file in ["", "think = true", "no-think = true"] {
        assert_eq!(thinking(Some("--think"), file), Some(true), "{file}");
        assert_eq!(thinking(Some("--no-think"), file), Some(false), "{file}");
    }
    assert_eq!(thinking(None, "no-think = true"), Some(false));
}
