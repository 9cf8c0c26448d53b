//! Programs that fetch things work as they are: where nothing is opened, and where
//! their registry wants a credential that the machine does not have.

use super::{base64, fresh_value};
use crate::context::{Case, Context};
use anyhow::{Result, ensure};

pub const CASES: &[Case] = crate::cases! {
    Service: packages_come_as_ever;
};

fn packages_come_as_ever(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let fetcher = world.machine("fetcher")?;
    let token = fresh_value("token")?;
    world.set("registry --to registry.upstream.example --basic me", &token)?;
    world.expect("registry", &format!("Basic {}", base64(&format!("me:{token}"))?))?;
    world.upstream.packages()?;
    // It brings its own certificates.
    fetcher.carry_module("pip", "tools")?;
    // Where nothing is opened, and where the server turns away whoever asks without.
    for host in ["elsewhere.upstream.example", "registry.upstream.example"] {
        let fetched = fetcher.exec(&format!(
            "PYTHONPATH=tools python3 -m pip -q install --no-cache-dir --disable-pip-version-check --no-deps \
                --target {host} --index-url https://{host}/files/simple tiny && PYTHONPATH={host} python3 -m tiny"
        ))?;
        ensure!(fetched.line() == "tiny from pip", "from {host}: {}", fetched.report());
    }
    let installed = fetcher.exec(
        "echo 'deb [trusted=yes] https://registry.upstream.example/files/apt ./' > list
         apt() { sudo apt-get -qq -o Dir::Etc::SourceList=$PWD/list -o Dir::Etc::SourceParts=/dev/null \
            -o APT::Sandbox::User=root \"$@\" > log 2>&1 || cat log; }
         apt update; apt -y install tiny; cat /usr/share/tiny",
    )?;
    ensure!(installed.line() == "tiny from apt", "{}", installed.report());
    Ok(())
}
