//! Words into raw arguments: clap does the work, but its errors become our one
//! line.

use super::Help;
use crate::ui::{
    Address,
    text::{QUOTED, printable},
};
use berth_types::{Code, MachineName, Refusal};
use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

pub fn parse<T: Parser>(help: &Help, words: &[String], address: &Address) -> Result<T, Refusal> {
    T::try_parse_from(words).map_err(|error| usage(help, what_is_wrong(&error), address))
}

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct OnlyName {
    name: String,
}

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Nothing {}

/// The words of a verb that takes one machine and nothing else.
pub fn only_name(help: &Help, words: &[String], address: &Address) -> Result<MachineName, Refusal> {
    let raw: OnlyName = parse(help, words, address)?;
    super::name(&raw.name)
}

/// The words of a verb that takes none.
pub fn nothing(help: &Help, words: &[String], address: &Address) -> Result<(), Refusal> {
    let Nothing {} = parse(help, words, address)?;
    Ok(())
}

pub fn usage(help: &Help, message: impl Into<String>, address: &Address) -> Refusal {
    Refusal::new(Code::Usage, message, format!("type: {} {}", address.lobby(), help.usage))
}

/// `VERB --help` asks for the same as `help VERB`.
pub fn asks_for_help(words: &[String]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--help" || word == "-h")
}

fn what_is_wrong(error: &clap::Error) -> String {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => printable(text, QUOTED),
        Some(ContextValue::Strings(texts)) => printable(&texts.join(" "), QUOTED),
        _ => String::new(),
    };
    let argument = word(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => format!("there is no option '{argument}'"),
        ErrorKind::UnknownArgument | ErrorKind::TooManyValues => format!("'{argument}' is one word too many"),
        ErrorKind::MissingRequiredArgument => format!("{} is missing", bare(&argument)),
        ErrorKind::InvalidValue if word(ContextKind::InvalidValue).is_empty() => {
            format!("{} has no value", argument.split(' ').next().unwrap_or_default())
        }
        ErrorKind::ArgumentConflict => {
            format!("{} is given twice", argument.split(' ').next().unwrap_or_default())
        }
        _ => "these words do not fit together".to_owned(),
    }
}

/// clap writes `<NAME>...`; people read `NAME`.
fn bare(argument: &str) -> String {
    argument.replace(['<', '>'], "").replace("...", "")
}
