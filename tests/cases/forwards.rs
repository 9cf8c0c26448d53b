//! Forwards of every kind, and connections that are shared.

use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Remote, Run, Running, eventually, until};
use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

pub const CASES: &[Case] = cases![
    AnyServer:
        local_forwards_reach_into_the_machine,
        a_forward_to_nothing_ends_at_once,
        remote_forwards_reach_out_of_it,
        remote_forwards_come_and_go,
        dynamic_forwards_speak_socks,
        unix_sockets_are_forwarded_both_ways,
        an_agent_is_forwarded_when_asked,
        twenty_sessions_share_a_connection,
        paramiko_works,
        asyncssh_works;
    // OpenSSH's server refuses signals in sessions of root, as the judge's are.
    Service:
        signals_pass_through,
        a_jump_leads_to_a_machine,
        low_ports_are_not_for_everyone;
];

const MINUTE: Duration = Duration::from_secs(60);
/// Enough to fill every window and buffer on the way.
const COUNT: &str = "4000000";

fn remote(context: &Context) -> Result<Remote> {
    let remote = context.remote("forwards")?;
    // The cases start at once; whoever is last writes the same.
    let script = include_str!("../clients/stream.py");
    remote.ssh(&[]).arg("cat > stream.$$ && mv stream.$$ stream.py").input(script)?.ok()?;
    Ok(remote)
}

fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

/// Something that has said where it listens.
struct Server {
    _process: Running,
    address: String,
}

fn listening(process: Running) -> Result<Server> {
    let said =
        until(
            "a server to listen",
            MINUTE,
            || Ok(Some(process.said()?).filter(|said| said.ends_with('\n'))),
        )?;
    Ok(Server { _process: process, address: said.trim().to_owned() })
}

fn serve_there(remote: &Remote, address: &str) -> Result<Server> {
    listening(remote.ssh(&[]).arg(format!("python3 stream.py serve {address}")).open_input().start()?)
}

fn serve_here(address: &str) -> Result<Server> {
    listening(
        Run::new("/usr/bin/python3")
            .arg(client("stream.py"))
            .args(["serve", address])
            .open_input()
            .start()?,
    )
}

fn ask_here(address: &str) -> Result<()> {
    let out = Run::new("/usr/bin/python3").arg(client("stream.py")).args(["ask", address, COUNT]).ok()?;
    ensure!(out.line() == COUNT, "{}", out.report());
    Ok(())
}

fn ask_there(remote: &Remote, address: &str) -> Result<()> {
    let out = remote.exec(&format!("python3 stream.py ask {address} {COUNT}"))?;
    ensure!(out.line() == COUNT, "{}", out.report());
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A connection that does nothing but forward, once it does.
fn forward(remote: &Remote, context: &Context, options: &[&str]) -> Result<(Running, String)> {
    let socket = context.scratch().directory("f")?.join("socket");
    let path = format!("ControlPath={}", socket.display());
    let always = ["-o", "ExitOnForwardFailure=yes", "-o", "ControlMaster=yes", "-o", &path, "-N"];
    let mut process = remote.ssh(&always).args(["-o", "LogLevel=INFO"]).args(options).start()?;
    eventually("the forward", MINUTE, || {
        ensure!(process.is_running()?, "ssh ended: {}", process.complained()?);
        // The socket appears when the connection is there; this asks whether it is used.
        Ok(socket.exists() && remote.ssh(&["-o", &path, "-O", "check"]).finish()?.status == 0)
    })?;
    Ok((process, path))
}

fn local_forwards_reach_into_the_machine(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let server = serve_there(&remote, "127.0.0.1:0")?;
    let port = free_port()?;
    let way = format!("{port}:127.0.0.1:{}", server.address);
    let _forward = forward(&remote, context, &["-L", &way])?;
    thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| ask_here(&format!("127.0.0.1:{port}")))).collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow::anyhow!("a thread failed"))?)
    })
}

fn a_forward_to_nothing_ends_at_once(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let port = free_port()?;
    let _forward = forward(&remote, context, &["-L", &format!("{port}:127.0.0.1:1")])?;
    let out = Run::new("curl").args(["-sS", "-m", "30", &format!("http://127.0.0.1:{port}/")]).finish()?;
    ensure!(out.status != 0 && out.status != 28, "{}", out.report());
    Ok(())
}

fn remote_forwards_reach_out_of_it(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let server = serve_here("127.0.0.1:0")?;
    let (process, _) = forward(&remote, context, &["-R", &format!("0:127.0.0.1:{}", server.address)])?;
    let port = allocated(&process)?;
    ask_there(&remote, &format!("127.0.0.1:{port}"))?;
    let taken = format!("{port}:127.0.0.1:{}", server.address);
    let second = remote.ssh(&["-N", "-o", "ExitOnForwardFailure=yes", "-R", &taken]).finish()?;
    ensure!(second.status == 255, "a port was given twice: {}", second.report());
    drop(process);
    eventually("the port to be free again", MINUTE, || {
        Ok(remote.run(&format!("python3 stream.py ask 127.0.0.1:{port} 1"))?.status != 0)
    })
}

/// ssh says which port it got for a 0.
fn allocated(process: &Running) -> Result<u16> {
    until("the port's number", MINUTE, || {
        let said = process.complained()?;
        let words = said.split_once("Allocated port ").and_then(|(_, rest)| rest.split_once(' '));
        words.map(|(port, _)| port.parse().context("no port")).transpose()
    })
}

fn remote_forwards_come_and_go(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let server = serve_here("127.0.0.1:0")?;
    let (_process, path) = forward(&remote, context, &[])?;
    let control = |words: &[&str]| remote.ssh(&["-o", &path]).args(words).ok();
    let way = format!("0:127.0.0.1:{}", server.address);
    let port = control(&["-O", "forward", "-R", &way])?.line();
    ask_there(&remote, &format!("127.0.0.1:{port}"))?;
    control(&["-O", "cancel", "-R", &way])?;
    let gone = remote.run(&format!("python3 stream.py ask 127.0.0.1:{port} 1"))?;
    ensure!(gone.status != 0, "the port is still open: {}", gone.report());
    Ok(())
}

fn dynamic_forwards_speak_socks(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let script = "import http.server as h, sys, threading\n\
                  s = h.ThreadingHTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n\
                  print(s.server_port, flush=True)\n\
                  threading.Thread(target=s.serve_forever, daemon=True).start()\n\
                  sys.stdin.read()\n";
    remote.write("web.py", script)?;
    let server = listening(remote.ssh(&[]).arg("python3 web.py").open_input().start()?)?;
    let port = free_port()?;
    let _forward = forward(&remote, context, &["-D", &port.to_string()])?;
    for scheme in ["socks5h", "socks4a"] {
        let proxy = format!("{scheme}://127.0.0.1:{port}");
        let url = format!("http://localhost:{}/web.py", server.address);
        let out = Run::new("curl").args(["-sS", "--noproxy", "", "-x", &proxy, &url]).ok()?;
        ensure!(out.text() == script, "{scheme}: {}", out.report());
    }
    Ok(())
}

fn unix_sockets_are_forwarded_both_ways(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let local = context.scratch().directory("x")?;
    let home = remote.line("pwd")?;
    let path = |name: &str| local.join(name).display().to_string();
    remote.exec("rm -f there.sock back.sock")?;
    let _there = serve_there(&remote, &format!("{home}/there.sock"))?;
    let _here = serve_here(&path("here.sock"))?;
    let out = format!("{}:{home}/there.sock", path("in.sock"));
    let back = format!("{home}/back.sock:{}", path("here.sock"));
    let _forward = forward(&remote, context, &["-L", &out, "-R", &back])?;
    ask_here(&path("in.sock"))?;
    ask_there(&remote, &format!("{home}/back.sock"))
}

fn an_agent_is_forwarded_when_asked(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let socket = context.scratch().directory("a")?.join("agent");
    let account = remote.account();
    let _agent = account.program("ssh-agent").arg("-D").arg("-a").arg(&socket).start()?;
    eventually("the agent", MINUTE, || Ok(socket.exists()))?;
    account.program("ssh-add").arg("-q").arg(account.key()).env("SSH_AUTH_SOCK", &socket).ok()?;
    let listed = account.program("ssh-add").arg("-l").env("SSH_AUTH_SOCK", &socket).ok()?.line();

    let inside = |options: &[&str]| {
        let use_agent = ["-o", "IdentityAgent=SSH_AUTH_SOCK"];
        remote.ssh(&use_agent).args(options).env("SSH_AUTH_SOCK", &socket).arg("ssh-add -l").finish()
    };
    let with = inside(&["-A"])?.ok()?;
    ensure!(with.line() == listed, "{}", with.report());
    let terminal = inside(&["-A", "-tt"])?.ok()?;
    ensure!(terminal.line().trim() == listed, "{}", terminal.report());
    let without = inside(&[])?;
    ensure!(without.status == 2, "an agent nobody forwarded: {}", without.report());
    let left = remote.line("ls -d /tmp/ssh-*/agent.* 2>/dev/null | wc -l")?;
    ensure!(context.is_sshd() || left == "0", "{left} sockets of agents are left");
    Ok(())
}

fn twenty_sessions_share_a_connection(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let (_master, path) = forward(&remote, context, &[])?;
    let meeting = "mkdir -p meet; touch meet/$$; while [ $(ls meet | wc -l) -lt 20 ]; do sleep 0.2; done";
    remote.exec("rm -rf meet")?;
    // Each waits for all the others: they are there at the same time.
    let all: Vec<Running> = (0..20)
        .map(|number| {
            remote.ssh(&["-o", &path]).arg(format!("{meeting}; echo {number}; exit {number}")).start()
        })
        .collect::<Result<_>>()?;
    for (number, one) in all.into_iter().enumerate() {
        let out = one.wait()?.expect(i32::try_from(number)?)?;
        ensure!(out.line() == number.to_string(), "{}", out.report());
    }
    Ok(())
}

fn paramiko_works(context: &Context) -> Result<()> {
    program(context, "with_paramiko.py")
}

fn asyncssh_works(context: &Context) -> Result<()> {
    program(context, "with_asyncssh.py")
}

fn signals_pass_through(context: &Context) -> Result<()> {
    program(context, "signals.py")
}

fn program(context: &Context, name: &str) -> Result<()> {
    let remote = remote(context)?;
    let address = remote.account().endpoint().address;
    let out = remote
        .account()
        .program("/usr/bin/python3")
        .arg(client(name))
        .args([&address.ip().to_string(), &address.port().to_string(), remote.login()])
        .arg(remote.account().key())
        .arg(context.scratch().directory("p")?)
        .ok()?;
    ensure!(out.line() == "ok", "{}", out.report());
    Ok(())
}

fn a_jump_leads_to_a_machine(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let jump = |options: &[&str]| remote.account().client("ssh").args(options).arg("hostname").ok();
    let direct = remote.line("hostname")?;
    for options in [&["-J", "berth", "main"][..], &["-J", "berth", "whoever@main"]] {
        let there = jump(options)?;
        ensure!(there.line() == direct, "{options:?}: {}", there.report());
    }
    let file = context.scratch().directory("j")?.join("file");
    std::fs::write(&file, "through a jump")?;
    remote.account().client("scp").args(["-J", "berth"]).arg(&file).arg("main:jumped").ok()?;
    ensure!(remote.line("cat jumped")? == "through a jump", "a file got lost");
    Ok(())
}

fn low_ports_are_not_for_everyone(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let low = remote.ssh(&["-N", "-o", "ExitOnForwardFailure=yes", "-R", "80:127.0.0.1:1"]).finish()?;
    ensure!(low.status == 255, "{}", low.report());
    Ok(())
}
