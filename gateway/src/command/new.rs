//! `new NAME`: a machine.

use super::{Answer, Context, Help, args, name, unexpected};
use crate::ui::text::{QUOTED, printable};
use berth_api::{MachineView, Reply, Request};
use berth_types::{ByteSize, Code, Labels, MachineSpec, Refusal};
use clap::Parser;

pub const HELP: Help = Help {
    verb: "new",
    usage: "new NAME [--image I] [--cpus N] [--memory 1G] [--disk 10G] [--label k=v]",
    summary: "a new machine",
    examples: &[
        "{ssh} {host} new dev",
        "{ssh} {host} new big --cpus 2 --memory 2G --disk 20G --label team=web",
    ],
    notes: "Names have 1 to 40 of a-z, 0-9 and '-', starting with a letter.\n\
            Sizes are 512M, 4G, 1.5G. What is not given is the installation's default.",
};

/// The words as they came.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Raw {
    name: String,
    #[arg(long, allow_hyphen_values = true)]
    image: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    cpus: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    memory: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    disk: Option<String>,
    #[arg(long = "label", allow_hyphen_values = true)]
    labels: Vec<String>,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    match context.call(Request::New { spec: spec(raw)? }).await? {
        Reply::Machine(machine) => made(context, &machine),
        _ => Err(unexpected()),
    }
}

fn made(context: &Context<'_>, machine: &MachineView) -> Result<Answer, Refusal> {
    let MachineView { name, cpus, memory, disk, .. } = machine;
    let cpus = if *cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") };
    let connect = context.address.machine(name.as_str());
    Answer::new(format!("{name} is there: {cpus}, {memory} memory, {disk} disk\n{connect}\n"), machine)
}

fn spec(raw: Raw) -> Result<MachineSpec, Refusal> {
    Ok(MachineSpec {
        name: name(&raw.name)?,
        image: raw.image.map(image).transpose()?,
        cpus: raw.cpus.map(|text| cpus(&text)).transpose()?,
        memory: raw.memory.map(|text| size("memory", &text, "512M")).transpose()?,
        disk: raw.disk.map(|text| size("disk", &text, "4G")).transpose()?,
        labels: raw.labels.iter().map(|text| label(text)).collect::<Result<Labels, _>>()?,
    })
}

fn wrong(option: &str, text: &str, why: &str, hint: &str) -> Refusal {
    let shown = printable(text, QUOTED);
    Refusal::new(Code::Usage, format!("--{option} '{shown}' does not work, {why}"), hint)
}

fn image(text: String) -> Result<String, Refusal> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !text.is_empty() && text.len() <= 64 && !text.starts_with(['.', '-']) && text.bytes().all(fits) {
        return Ok(text);
    }
    Err(wrong("image", &text, "that is no image's name", "leave it out for the default image"))
}

fn cpus(text: &str) -> Result<u32, Refusal> {
    match text.parse::<u32>() {
        Ok(0) => Err(wrong("cpus", text, "a machine has at least one CPU", "try --cpus 1")),
        Ok(count) => Ok(count),
        Err(_) => Err(wrong("cpus", text, "it is a whole number", "try --cpus 1")),
    }
}

fn size(option: &str, text: &str, example: &str) -> Result<ByteSize, Refusal> {
    text.parse::<ByteSize>()
        .map_err(|error| wrong(option, text, &error.to_string(), &format!("try --{option} {example}")))
}

fn label(text: &str) -> Result<(String, String), Refusal> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && text.len() <= 256 => Ok((key.to_owned(), value.to_owned())),
        _ => Err(wrong("label", text, "a label is key=value, at most 256 bytes", "try --label team=web")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::Address;

    fn parsed(line: &str) -> Result<MachineSpec, String> {
        let words = shlex::split(line).unwrap();
        let raw: Result<Raw, Refusal> = args::parse(&HELP, &words, &Address::new("localhost", 2222));
        raw.and_then(spec).map_err(|refusal| {
            assert_eq!(refusal.code, Code::Usage);
            assert!(!refusal.hint.is_empty());
            refusal.message
        })
    }

    #[test]
    fn everything_that_can_be_chosen() {
        let spec = parsed("dev --cpus 2 --memory 512M --disk 4G --image x --label a=b --label c=").unwrap();
        assert_eq!((spec.name.as_str(), spec.cpus), ("dev", Some(2)));
        assert_eq!((spec.memory, spec.disk), (Some(ByteSize::mib(512)), Some(ByteSize::gib(4))));
        assert_eq!(spec.labels.len(), 2);
    }

    #[test]
    fn bad_words_are_told_in_one_line() {
        for (line, message) in [
            ("", "NAME is missing"),
            ("a b", "'b' is one word too many"),
            ("a --ttl 2h", "there is no option '--ttl'"),
            ("a --memory", "--memory has no value"),
            ("a --memory 1G --memory 2G", "--memory is given twice"),
            ("a --memory 0", "--memory '0' does not work, a size cannot be zero"),
            ("a --memory -1G", "--memory '-1G' does not work, a size cannot be negative"),
            ("a --disk lots", "--disk 'lots' does not work, a size is a number with K, M, G or T behind it"),
            ("a --cpus 0", "--cpus '0' does not work, a machine has at least one CPU"),
            ("a --cpus -1", "--cpus '-1' does not work, it is a whole number"),
            ("a --label x", "--label 'x' does not work, a label is key=value, at most 256 bytes"),
            ("a --image ../x", "--image '../x' does not work, that is no image's name"),
            ("LS", "'LS' cannot name a machine"),
            ("ls", "'ls' cannot name a machine"),
        ] {
            assert_eq!(parsed(line).unwrap_err(), message, "{line}");
        }
    }
}
