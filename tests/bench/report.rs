//! docs/benchmarks.md.

use anyhow::Result;
use berth_tests::Run;
use serde::Deserialize;
use std::{fmt::Write as _, fs};

/// One figure per server: sshd, the gateway alone, a machine.
pub struct Row {
    what: &'static str,
    figures: [f64; 3],
}

impl Row {
    pub fn new(what: &'static str, figures: [f64; 3]) -> Self {
        Self { what, figures }
    }
}

/// One figure without the egress bridge, with it, and with mitmproxy where it
/// is installed.
#[derive(Deserialize)]
pub struct Egress {
    what: String,
    unit: String,
    direct: f64,
    bridge: f64,
    mitmproxy: Option<f64>,
}

pub struct Report {
    facts: Vec<(&'static str, String)>,
    times: Vec<Row>,
    rates: Vec<Row>,
    memory: Vec<(&'static str, f64, f64)>,
    rest: Vec<(&'static str, [f64; 3])>,
    egress: Vec<Egress>,
    notes: Vec<String>,
}

impl Report {
    pub fn new() -> Result<Self> {
        let line = |program: &str, words: &[&str]| -> Result<String> {
            let output = Run::new(program).args(words.iter().copied()).finish()?;
            let said = format!("{}{}", output.text(), output.errors());
            Ok(said.lines().next().unwrap_or_default().to_owned())
        };
        let cpu = fs::read_to_string("/proc/cpuinfo")?;
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cores = std::thread::available_parallelism()?;
        let facts = vec![
            ("date", line("date", &["-u", "+%Y-%m-%d %H:%M UTC"])?),
            ("host", format!("{}, {cores} cores", model.map_or("?", |(_, model)| model))),
            ("kernel", line("uname", &["-sr"])?),
            ("OpenSSH", line("ssh", &["-V"])?),
            ("QEMU", line("qemu-system-x86_64", &["--version"])?),
            ("berth", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        Ok(Self {
            facts,
            times: Vec::new(),
            rates: Vec::new(),
            memory: Vec::new(),
            rest: Vec::new(),
            egress: Vec::new(),
            notes: Vec::new(),
        })
    }

    pub fn time(&mut self, row: Row) {
        self.times.push(row);
    }

    pub fn rate(&mut self, row: Row) {
        self.rates.push(row);
    }

    pub fn memory(&mut self, what: &'static str, gateway: f64, hostd: f64) {
        self.memory.push((what, gateway, hostd));
    }

    pub fn rest(&mut self, what: &'static str, figures: [f64; 3]) {
        self.rest.push((what, figures));
    }

    pub fn egress(&mut self, row: Egress) {
        self.egress.push(row);
    }

    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub fn render(&self) -> String {
        let mut text = String::from(
            "# Benchmarks\n\n\
             Written by `make bench`; medians, the servers taking turns in one run. Compare ratios: figures\n\
             of another host or another hour say little. *sshd* is OpenSSH's server on the same host with\n\
             the same key type and cipher. *gateway* is ours in front of guest-init as a process on the\n\
             host: what it has over sshd is what the gateway costs. *machine* is the real thing: what it\n\
             has over the gateway is what the guest costs, which without KVM is emulated.\n\n",
        );
        for (what, fact) in &self.facts {
            let _ = writeln!(text, "- {what}: {fact}");
        }
        table(&mut text, "Time, in ms (a ratio under 1 is faster than sshd)", &self.times);
        table(&mut text, "MiB per second (a ratio over 1 is faster than sshd)", &self.rates);
        text.push_str(
            "\n## Memory, in MiB (proportional set size)\n\n| | gateway | hostd |\n|---|---:|---:|\n",
        );
        for (what, gateway, hostd) in &self.memory {
            let _ = writeln!(text, "| {what} | {gateway:.1} | {hostd:.1} |");
        }
        text.push_str(
            "\n## Sleep, wake and fork, in ms, by the machine's memory, most of it written by the guest\n\n\
             | | 256 MiB | 1 GiB | 4 GiB | 4 GiB / 256 MiB |\n|---|---:|---:|---:|---:|\n",
        );
        for (what, [small, middle, large]) in &self.rest {
            let _ =
                writeln!(text, "| {what} | {small:.0} | {middle:.0} | {large:.0} | {:.2} |", large / small);
        }
        text.push_str(
            "\nThe three machines are there at once and take turns within every row, so that a busy minute of\n\
             the host hits all sizes alike.\n",
        );
        egress(&mut text, &self.egress);
        text.push('\n');
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }
}

fn egress(text: &mut String, rows: &[Egress]) {
    text.push_str(
        "\n## Egress: the same client and server, directly and by the bridge, all on this host's cores\n\n\
         | | unit | direct | bridge | mitmproxy | bridge / direct | bridge / mitmproxy |\n\
         |---|---|---:|---:|---:|---:|---:|\n",
    );
    let ratio =
        |over: f64, under: f64| if under > 0.0 { format!("{:.2}", over / under) } else { String::new() };
    for Egress { what, unit, direct, bridge, mitmproxy } in rows {
        let other = mitmproxy.map(|figure| format!("{figure:.0}")).unwrap_or_default();
        let against = ratio(*bridge, mitmproxy.unwrap_or_default());
        let direct_shown = if *direct > 0.0 { format!("{direct:.0}") } else { String::new() };
        let _ = writeln!(
            text,
            "| {what} | {unit} | {direct_shown} | {bridge:.0} | {other} | {} | {against} |",
            ratio(*bridge, *direct)
        );
    }
}

fn table(text: &mut String, title: &str, rows: &[Row]) {
    let _ = write!(
        text,
        "\n## {title}\n\n| | sshd | gateway | machine | gateway / sshd | machine / sshd |\n\
         |---|---:|---:|---:|---:|---:|\n"
    );
    for Row { what, figures: [sshd, gateway, machine] } in rows {
        let _ = writeln!(
            text,
            "| {what} | {sshd:.0} | {gateway:.0} | {machine:.0} | {:.2} | {:.2} |",
            gateway / sshd,
            machine / sshd
        );
    }
}
