//! The sources of a flag's value: the flag itself, else `WEFT_*` in the environment, else the
//! config file, else the default.
//!
//! Every long flag has the same name in all of them: `--ctx-size`, `WEFT_CTX_SIZE`, `ctx-size =
//! "32k"`. The config file is `$WEFT_CONFIG`, or `weft/config.toml` in the user's configuration
//! folder.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{FalseyValueParser, Resettable};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches};

use crate::args::{Cli, Command};
use crate::error::CliError;

/// Parses the command line, the environment and the config file.
pub(crate) fn parse() -> Result<Cli, CliError> {
    let defaults = match config_file() {
        // A file that the user names must exist.
        Some((path, is_named)) if is_named || path.exists() => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(&path)
                .map_err(|error| CliError::Usage(format!("{name}: {error}")))?;
            read_defaults(&text).map_err(|reason| CliError::Usage(format!("{name}: {reason}")))?
        }
        _ => Vec::new(),
    };
    parse_from(std::env::args_os().collect(), &defaults)
}

/// A flag's long name and its value in the config file.
type Default = (String, String);

fn parse_from(args: Vec<OsString>, defaults: &[Default]) -> Result<Cli, CliError> {
    let mut command = Cli::command();
    command.build();
    refuse_unknown(&command, defaults)?;
    // The last of a repeated flag counts, so that an alias can be overridden.
    let command = command.mut_subcommands(|sub| layer(sub, defaults));
    let matches = command.try_get_matches_from(args).unwrap_or_else(|error| error.exit());
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let (Some(command), Some((_, flags))) = (&mut cli.command, matches.subcommand()) {
        settle(command, flags);
    }
    Ok(cli)
}

/// Adds all sources to the flags of a command and of its subcommands.
fn layer(command: clap::Command, defaults: &[Default]) -> clap::Command {
    command
        .args_override_self(true)
        .mut_args(|arg| layered(arg, defaults))
        .mut_subcommands(|sub| layer(sub, defaults))
}

/// Settles everything that depends on a value's source.
fn settle(command: &mut Command, flags: &ArgMatches) {
    let by_flag = |name: &str| flags.value_source(name) == Some(ValueSource::CommandLine);
    let prompt = match command {
        Command::Run(args) => {
            args.model_by_flag = by_flag("model");
            &mut args.prompt
        }
        Command::Ask(args) | Command::Verify(args) => {
            args.model_by_flag = by_flag("model");
            &mut args.prompt
        }
        Command::Chat(args) => &mut args.prompt,
        _ => return,
    };
    // If two switches contradict each other, the one on the command line wins.
    prompt.think &= !by_flag("no_think");
    prompt.no_think &= !by_flag("think");
}

/// Adds the environment variable and the line of the config file to a flag.
fn layered(arg: clap::Arg, defaults: &[Default]) -> clap::Arg {
    let Some(long) = settable(&arg) else { return arg };
    let mut arg = arg;
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        // For `WEFT_QUIET=1`: any value except 0, no, off or false switches on.
        arg = arg.value_parser(FalseyValueParser::new());
    }
    let variable = format!("WEFT_{}", long.to_ascii_uppercase().replace('-', "_"));
    if std::env::var_os(&variable).is_some_and(|value| !value.is_empty()) {
        arg = arg.env(variable).hide_env(true);
    }
    match defaults.iter().find(|(name, _)| *name == long) {
        Some((_, value)) => arg.default_value(Resettable::Value(value.clone().into())),
        None => arg,
    }
}

/// Flags that only a command line may set. Above all, a line in a file must never select the chunks
/// to delete.
const OF_ONE_CALL: [&str; 8] =
    ["help", "version", "all", "kind", "older-than", "meta", "name", "other-models"];

/// The long name of a flag that a file may set.
fn settable(arg: &clap::Arg) -> Option<String> {
    let long = arg.get_long()?;
    (!OF_ONE_CALL.contains(&long)).then(|| long.to_owned())
}

fn refuse_unknown(command: &clap::Command, defaults: &[Default]) -> Result<(), CliError> {
    let mut known = BTreeSet::new();
    add_settable(command, &mut known);
    match defaults.iter().find(|(name, _)| !known.contains(name)) {
        Some((name, _)) => Err(CliError::Usage(format!(
            "the config file sets `{name}`, which is not a flag of weft; the flags are {}",
            known.into_iter().collect::<Vec<_>>().join(", ")
        ))),
        None => Ok(()),
    }
}

/// The flags of a command's subcommands, recursively.
fn add_settable(command: &clap::Command, known: &mut BTreeSet<String>) {
    for sub in command.get_subcommands() {
        known.extend(sub.get_arguments().filter_map(settable));
        add_settable(sub, known);
    }
}

/// The config file, and whether the user named it.
fn config_file() -> Option<(PathBuf, bool)> {
    if let Some(named) = path_variable("WEFT_CONFIG") {
        return Some((named, true));
    }
    Some((user_folder("XDG_CONFIG_HOME", ".config")?.join("config.toml"), false))
}

/// weft's folder of a kind: below the folder in the variable, else at the usual place below the
/// home folder.
pub(crate) fn user_folder(variable: &str, usual: &str) -> Option<PathBuf> {
    let below_home = || Some(path_variable("HOME")?.join(usual));
    Some(path_variable(variable).or_else(below_home)?.join("weft"))
}

pub(crate) fn path_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Reads the flags from the text of a config file.
fn read_defaults(text: &str) -> Result<Vec<Default>, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    table
        .into_iter()
        .map(|(name, value)| match value {
            toml::Value::String(text) => Ok((name, text)),
            toml::Value::Integer(number) => Ok((name, number.to_string())),
            toml::Value::Float(number) => Ok((name, number.to_string())),
            toml::Value::Boolean(flag) => Ok((name, flag.to_string())),
            _ => Err(format!("`{name}` must be a text, a number, true or false")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ModelArgs;

    fn model_args(args: &[&str], file: &str) -> ModelArgs {
        let args = args.iter().map(OsString::from).collect();
        match parse_from(args, &read_defaults(file).unwrap()).unwrap().command {
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

    #[test]
    fn a_key_that_is_no_flag_is_refused() {
        let Err(error) = parse_from(vec!["weft".into()], &read_defaults("colour = 1").unwrap())
        else {
            panic!("accepted")
        };
        assert!(error.to_string().contains("`colour`"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_toml_says_where() {
        assert!(read_defaults("ctx-size = ").unwrap_err().contains("line 1"));
        assert!(read_defaults("stop = [1]").unwrap_err().contains("`stop`"));
    }
}
