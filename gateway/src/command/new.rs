//! `new NAME`: a machine.

use super::{Answer, Context, Help, args, name, new_name, snapshot, unexpected, when};
use crate::ui::text::{QUOTED, printable};
use berth_api::{MachineView, Reply, Request};
use berth_types::{ByteSize, Code, Labels, MachineSpec, Refusal, is_label};
use clap::Parser;

pub const HELP: Help = Help {
    verb: "new",
    usage: "new NAME [--image I] [--cpus N] [--memory 1G] [--disk 10G] [--ttl 2h] [--label k=v] [--from NAME/LABEL]",
    summary: "a new machine",
    examples: &[
        "{ssh} {host} new dev",
        "{ssh} {host} new big --cpus 2 --memory 2G --disk 20G --label team=web",
        "{ssh} {host} new trial --ttl 2h",
        "{ssh} {host} new again --from dev/before",
    ],
    notes: "Names have 1 to 40 of a-z, 0-9 and '-', start with a letter, and do not end with '-'.\n\
            Sizes are 512M, 4G, 1.5G. What is not given is the installation's default.\n\
            With --ttl it removes itself after that time. With --from it starts as a snapshot of\n\
            another machine, memory and all, and has its sizes.",
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
    #[arg(long, allow_hyphen_values = true)]
    ttl: Option<String>,
    #[arg(long = "label", allow_hyphen_values = true)]
    labels: Vec<String>,
    #[arg(long, allow_hyphen_values = true)]
    from: Option<String>,
}

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    let raw: Raw = args::parse(&HELP, words, context.address)?;
    let request = match raw.from.clone() {
        Some(from) => from_point(raw, &from)?,
        None => Request::New { spec: spec(raw)? },
    };
    match context.call(request).await? {
        Reply::Machine(machine) => made(context, &machine),
        _ => Err(unexpected()),
    }
}

/// A copy has what it is a copy of: nothing else can be chosen.
fn from_point(raw: Raw, from: &str) -> Result<Request, Refusal> {
    let chosen = raw.image.is_some() || raw.cpus.is_some() || raw.memory.is_some() || raw.disk.is_some();
    if chosen || !raw.labels.is_empty() {
        let message = "--from brings its own image and sizes";
        return Err(Refusal::new(Code::Usage, message, "leave the other options out"));
    }
    let Some((source, point)) = from.split_once('/') else {
        return Err(wrong("from", from, "it is a machine and a label", "try --from dev/before"));
    };
    let ttl = raw.ttl.as_deref().map(|text| when::span("--ttl", text)).transpose()?;
    Ok(Request::NewFrom {
        new: new_name(&raw.name)?,
        name: name(source)?,
        point: snapshot::point(point)?,
        ttl,
    })
}

fn made(context: &Context<'_>, machine: &MachineView) -> Result<Answer, Refusal> {
    let MachineView { name, cpus, memory, disk, .. } = machine;
    let cpus = if *cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") };
    let connect = context.address.machine(name.as_str());
    Answer::new(format!("{name} is there: {cpus}, {memory} memory, {disk} disk\n{connect}\n"), machine)
}

fn spec(raw: Raw) -> Result<MachineSpec, Refusal> {
    Ok(MachineSpec {
        name: new_name(&raw.name)?,
        image: raw.image.map(image).transpose()?,
        cpus: raw.cpus.map(|text| cpus(&text)).transpose()?,
        memory: raw.memory.map(|text| size("memory", &text, "512M")).transpose()?,
        disk: raw.disk.map(|text| size("disk", &text, "4G")).transpose()?,
        ttl: raw.ttl.as_deref().map(|text| when::span("--ttl", text)).transpose()?,
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
        Some((key, value)) if is_label(key, value) => Ok((key.to_owned(), value.to_owned())),
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
            ("a --ttl soon", "'soon' is no duration, a duration is a number with s, m, h or d behind it"),
            ("a --size 2G", "there is no option '--size'"),
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
