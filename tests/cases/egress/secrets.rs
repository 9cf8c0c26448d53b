//! Each form of a secret, from unmodified programs in a real machine.

use super::{base64, curl, fresh_value, welcomed};
use crate::{
    context::{Case, Context},
    verbs::json,
};
use anyhow::{Result, ensure};
use std::fs;

pub const CASES: &[Case] = crate::cases! {
    Service:
        headers_and_placeholders,
        streams,
        remote_calls,
        git_over_https_and_ssh,
        client_certificates,
        forks_have_them_or_not,
};

const WEBSOCKET: &str = r#"
import websocket
there = websocket.create_connection("wss://api.upstream.example/ws", timeout=60)
there.send("stressed")
print(there.getstatus(), there.recv())
"#;

/// Each event is sent when the last one was seen: nothing is held back.
const EVENTS: &str = r#"
import urllib.request
def ask(path):
    return urllib.request.urlopen("https://api.upstream.example/" + path, timeout=90)
came = []
for line in ask("sse"):
    if line.startswith(b"data:"):
        came.append(line.split()[2].decode())
        ask("seen").read()
print(*came)
"#;

const CALLS: &str = r#"
import time, grpc
with grpc.secure_channel("grpc.upstream.example:50051", grpc.ssl_channel_credentials()) as channel:
    answer, call = channel.unary_unary("/berth.Test/Greet").with_call(b"world", timeout=60)
    print(answer.decode(), dict(call.trailing_metadata())["x-last"], sep=", ")
    # Each message is sent when the answer to the last is there: nothing is held back.
    came = []
    def messages():
        for text in (b"stressed", b"drawer", b"live"):
            seen = len(came)
            yield text
            while len(came) == seen:
                time.sleep(0.01)
    reversing = channel.stream_stream("/berth.Test/Reverse")(messages(), timeout=60)
    for message in reversing:
        came.append(message.decode())
    print(*came, dict(reversing.trailing_metadata())["x-count"])
    try:
        channel.unary_unary("/berth.Test/Refuse")(b"", timeout=60)
    except grpc.RpcError as error:
        print(error.code().name, error.details())
"#;

/// gRPC's own client, with the libraries that it needs.
const CLIENT_OF_CALLS: &str = "cd /usr/lib/python3/dist-packages && \
    tar -c --exclude __pycache__ grpc --transform 's,.*/\\(lib[^/]*\\.so[.0-9]*\\)$,lib/\\1,' \
        --absolute-names --dereference \
        $(ldd grpc/_cython/cygrpc*.so | awk '$3 ~ /lib(absl|cares|re2|stdc|gcc)/ { print $3 }')";

fn headers_and_placeholders(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let (one, two) = (fresh_value("sk-one")?, fresh_value("sk-two")?);
    world.set(
        "first --to headers.upstream.example --header Authorization: Bearer {} --header X-Key: {}",
        &one,
    )?;
    world.expect("first", &format!("Bearer {one}"))?;
    welcomed(&dev, "https://headers.upstream.example/first")?;
    // What the guest sends in its place is dropped, and what comes back is not the value.
    welcomed(&dev, "-H 'Authorization: Bearer mine' https://headers.upstream.example/first")?;
    let echoed = curl(&dev, "https://headers.upstream.example/echo")?.ok()?.line();
    ensure!(echoed.starts_with("Bearer berth_secret_"), "the server's echo came through: {echoed}");
    // A new value counts for the next request.
    world.set("first --to headers.upstream.example --header Authorization: Bearer {}", &two)?;
    world.expect("first", &format!("Bearer {two}"))?;
    welcomed(&dev, "https://headers.upstream.example/first")?;
    // It does not follow a redirect to another host.
    let led =
        "-L -H 'X-Where: https://elsewhere.upstream.example/first' https://headers.upstream.example/redirect";
    let led = curl(&dev, led)?;
    ensure!(
        led.line() == "who are you?",
        "a secret followed a redirect, or it led nowhere: {}",
        led.report()
    );

    let stripe = fresh_value("sk-live")?;
    world.set("STRIPE_KEY --to stripe.upstream.example --placeholder", &stripe)?;
    world.expect("stripe", &stripe)?;
    world.expect("form", &format!("key={stripe}&amount=1"))?;
    let placeholder = dev.line("echo $STRIPE_KEY")?;
    ensure!(placeholder.starts_with("berth_secret_"), "no placeholder in the environment: {placeholder}");
    welcomed(
        &dev,
        "-H \"X-Api-Key: $STRIPE_KEY\" -H 'X-Look-At: X-Api-Key' https://stripe.upstream.example/stripe",
    )?;
    welcomed(&dev, "-d \"key=$STRIPE_KEY&amount=1\" https://stripe.upstream.example/form")?;
    world.expect("basic", &format!("Basic {}", base64(&format!("{stripe}:"))?))?;
    welcomed(&dev, "-u \"$STRIPE_KEY:\" https://stripe.upstream.example/basic")?;

    let listed = world.account.verb("secret ls --json")?.ok()?;
    ensure!(listed.text().contains("STRIPE_KEY"), "{}", listed.text());
    for value in [&one, &two, &stripe] {
        ensure!(!listed.text().contains(value.as_str()), "a value is listed");
    }
    world.account.verb("secret rm first")?.ok()?;
    let gone = curl(&dev, "https://headers.upstream.example/first")?;
    ensure!(gone.line() == "who are you?", "removed, and still used: {}", gone.report());
    Ok(())
}

fn streams(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let value = fresh_value("sk-stream")?;
    world.set("streams --to api.upstream.example --header Authorization: Bearer {}", &value)?;
    world.expect("api", &format!("Bearer {value}"))?;
    dev.carry_module("websocket", "sockets")?;
    dev.write("ws.py", WEBSOCKET)?;
    ensure!(dev.line("PYTHONPATH=sockets python3 ws.py")? == "101 desserts", "no WebSocket");
    dev.write("sse.py", EVENTS)?;
    ensure!(dev.line("python3 sse.py")? == "True True True True True", "events were lost or held up");
    // Where no secret goes nothing is opened, and a server may speak first.
    ensure!(dev.line("curl -sS https://elsewhere.upstream.example/whole | wc -c")? == "8388608", "not whole");
    let spoke = dev.line("timeout 60 nc -d elsewhere.upstream.example 5432")?;
    ensure!(spoke == "hello, I speak first", "{spoke}");
    let info = curl(&dev, "http://berth.internal/")?.ok()?.json()?;
    ensure!(info.get("name").is_some_and(|name| name == "dev"), "{info}");
    ensure!(!info.to_string().contains(&value), "{info}");
    Ok(())
}

fn remote_calls(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let value = fresh_value("sk-call")?;
    world.set("grpc --to grpc.upstream.example:50051 --header Authorization: Bearer {}", &value)?;
    world.expect("grpc", &format!("Bearer {value}"))?;
    dev.carry(CLIENT_OF_CALLS, "calls")?;
    dev.write("calls.py", CALLS)?;
    let called = dev.exec("PYTHONPATH=calls LD_LIBRARY_PATH=calls/lib python3 calls.py")?;
    ensure!(
        called.line()
            == "hello world, after the message\ndesserts reward evil 3\nFAILED_PRECONDITION not like this",
        "{}",
        called.report()
    );
    Ok(())
}

fn git_over_https_and_ssh(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let token = fresh_value("token")?;
    world.set("git --to git.upstream.example:443 --basic me", &token)?;
    world.expect("git", &format!("Basic {}", base64(&format!("me:{token}"))?))?;
    let (path, url) = world.upstream.repository("one")?;
    let work = "git config --global user.email a@b && git config --global user.name a && rm -rf https ssh && \
                git clone -q URL https 2>&1 && cd https && echo hello > file && git add file && \
                git commit -qm one && git push -q origin HEAD:main 2>&1 && git ls-remote origin main | wc -l";
    ensure!(dev.line(&work.replace("URL", &url))?.ends_with('1'), "not pushed over HTTPS");

    let key = fs::read(world.upstream.file("deploy"))?;
    let host_key = fs::read_to_string(world.upstream.file("ssh_host.pub"))?;
    let host_key: Vec<&str> = host_key.split(' ').take(2).collect();
    let words = "deploy --to git.upstream.example:22 --ssh --user root --known-host git.upstream.example";
    world.set(&format!("{words} {}", host_key.join(" ")), key)?;
    let url = format!("ssh://git@git.upstream.example{}", path.display());
    let work = "git clone -q URL ssh 2>&1 && cd ssh && cat file && echo more >> file && \
                git commit -qam two && git push -q origin main 2>&1 && \
                git log --oneline origin/main | wc -l";
    let done = dev.exec(&work.replace("URL", &url))?;
    ensure!(done.line().ends_with('2'), "not pushed over SSH: {}", done.report());
    // Where no key goes any more, the server's own is what counts.
    world.account.verb("secret rm deploy")?.ok()?;
    let known = dev.run("ssh-keygen -F git.upstream.example -f /etc/ssh/ssh_known_hosts")?;
    ensure!(known.status != 0, "the bridge is still known: {}", known.report());
    Ok(())
}

fn client_certificates(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let without = curl(&dev, "https://mtls.upstream.example:8443/certificate")?;
    ensure!(without.status != 0, "the server wants no certificate: {}", without.report());
    let both = fs::read(world.upstream.file("client.pem"))?;
    world.set("mtls --to mtls.upstream.example:8443 --client-cert", both)?;
    let subject = curl(&dev, "https://mtls.upstream.example:8443/certificate")?.ok()?.line();
    ensure!(subject == "the machine", "{subject}");
    Ok(())
}

fn forks_have_them_or_not(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let dev = world.machine("dev")?;
    let value = fresh_value("sk-fork")?;
    world.set("MINE --to fork.upstream.example --placeholder --header X-Mine: {} --machine dev", &value)?;
    world.expect("fork", &value)?;
    let look = "-H 'X-Look-At: X-Mine' https://fork.upstream.example/fork";
    welcomed(&dev, look)?;
    world.account.verb("fork dev heir")?.ok()?;
    world.account.verb("fork dev cut --no-secrets")?.ok()?;
    let (heir, cut) = (world.account.at("heir"), world.account.at("cut"));
    welcomed(&heir, look)?;
    ensure!(curl(&cut, look)?.line() == "who are you?", "a machine that was cut off has a secret");
    ensure!(heir.line("echo $MINE")?.starts_with("berth_secret_"), "the fork has no placeholder");
    ensure!(cut.line("echo $MINE")?.is_empty(), "a machine that was cut off has a placeholder");
    let other = world.machine("caged")?;
    ensure!(other.line("echo $MINE")?.is_empty(), "another machine has it");
    ensure!(
        json(&world.account, "egress cut")?.get("secrets").is_none(),
        "it is listed for one that is cut off"
    );
    world.account.verb("rm heir cut")?.ok()?;
    Ok(())
}
