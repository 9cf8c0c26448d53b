//! The bridge process. Everything it needs comes over its standard input.

use anyhow::Context as _;

fn main() -> anyhow::Result<()> {
    // It writes no files. If it ever does, they are its own user's.
    nix::sys::stat::umask(nix::sys::stat::Mode::S_IRWXG | nix::sys::stat::Mode::S_IRWXO);
    let mut numbers = std::env::args().skip(1).map_while(|word| word.parse().ok());
    let user = numbers.next().zip(numbers.next());
    let (uid, gid) = user.context("hostd starts this program: berth-bridge UID GID")?;
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .without_time()
        .init();
    berth_egress::run_bridge(uid, gid)
}
