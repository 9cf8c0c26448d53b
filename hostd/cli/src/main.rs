//! `berth`: see the library.

fn main() -> std::process::ExitCode {
    berth_cli::main()
}
