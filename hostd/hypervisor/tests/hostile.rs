//! A hostile program in place of the hypervisor, started by the real driver in its real
//! jail: what does it reach of the host? This very program is the hostile one.
//!
//! Each attack is tried by a process that its guest has taken over (`hostile/attacks.rs`)
//! and judged here. The host offers what a careless one would: a file and sockets that
//! are open to all, shared memory, a process of the same user.

#[path = "hostile/attacks.rs"]
mod attacks;
#[path = "support/net.rs"]
#[allow(dead_code)] // The contract's cases talk to guests, too.
mod net;

use anyhow::{Context as _, Result, ensure};
use attacks::Plan;
use berth_hypervisor::{
    Driver as _, Launch, Origin,
    qemu::{Accel, Qemu, Settings},
};
use berth_types::{ByteSize, MachineId};
use libtest_mimic::{Arguments, Trial};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{PermissionsExt as _, chown},
            net::{SocketAddr, UnixListener},
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

/// No user of this host.
const UID: u32 = 765_433;
const DISK: u64 = 128 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// What each attack has to come to.
const EXPECTED: &[(&str, &str)] = &[
    ("reads a file of everybody's", "ENOENT"),
    ("reads /etc/passwd", "ENOENT"),
    ("lists processes", "ENOENT"),
    ("sees directories of the host's root", ""),
    ("sees in /dev", "null urandom"),
    ("sees in /etc", "ld.so.cache"),
    ("signals a process of its user", "ESRCH"),
    ("traces a process of its user", "EPERM"),
    ("reads the memory of a process of its user", "EPERM"),
    ("connects to a socket in a directory", "ENOENT"),
    ("connects to an abstract socket", "ECONNREFUSED"),
    ("finds shared memory", "ENOENT"),
    ("writes to the root", "EROFS"),
    ("writes to a device's directory", "EROFS"),
    ("writes to the kernel", "EROFS"),
    ("writes to its program", "EACCES"),
    ("opens a network", "EPERM EPERM EPERM EPERM"),
    ("opens KVM", "ENOENT"),
    ("becomes root", "EPERM"),
    ("makes a user namespace", "EPERM"),
    ("makes a process in a user namespace", "EPERM"),
    ("makes a process in a network namespace", "EPERM"),
    ("makes a process with flags in memory", "ENOSYS"),
    ("mounts", "EPERM"),
    ("loads a program into the kernel", "EPERM"),
    ("has capabilities", "none, bounding none"),
    ("gains privileges", "never"),
    ("writes a file that is too large", "EFBIG"),
    ("opens more than a thousand files", "EMFILE"),
    ("raises its limits", "EPERM"),
    ("leaves a core", "limit 1"),
    ("has descriptors", "0 1 2 64 65 66, directories: 0"),
    ("blocks signals", "none"),
    ("has an environment", "PATH"),
    ("has process ids", "1 of 0"),
    ("knows the host's name", "berth"),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1).map(String::as_str) {
        Some("--version") => {
            println!("QEMU emulator version 7.2.0 (hostile)");
            return ExitCode::SUCCESS;
        }
        Some("-nodefaults") => return attacks::run(),
        _ => {}
    }
    let arguments = Arguments::from_args();
    let root = rustix::process::geteuid().is_root();
    let outcome = match (root, arguments.list) {
        (true, false) => outcome().map_err(|error| format!("{error:#}")),
        _ => Err("needs root".to_owned()),
    };
    let outcome = Arc::new(outcome);
    let mut trials: Vec<_> = EXPECTED
        .iter()
        .map(|(attack, expected)| {
            let outcome = outcome.clone();
            Trial::test(format!("it {attack}").replace(' ', "_"), move || judge(&outcome, attack, expected))
        })
        .collect();
    let kept = outcome.clone();
    trials.push(Trial::test("starting_it_changes_nothing_in_hostd", move || match &*kept {
        Ok(outcome) if outcome.dumpable => Ok(()),
        Ok(_) => Err("a start cleared the dumpable flag of the process that started it".into()),
        Err(error) => Err(error.into()),
    }));
    let trials = trials.into_iter().map(|trial| trial.with_ignored_flag(!root)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn judge(
    outcome: &Result<Outcome, String>,
    attack: &str,
    expected: &str,
) -> Result<(), libtest_mimic::Failed> {
    let outcome = outcome.as_ref()?;
    let found = outcome.attacks.get(attack).ok_or("it was not tried")?;
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}

struct Outcome {
    attacks: BTreeMap<String, String>,
    /// Of this process, which was when it began.
    dumpable: bool,
}

fn outcome() -> Result<Outcome> {
    // Where /proc/sys/fs/suid_dumpable is 0, only a process that has the flag can lose it.
    nix::sys::prctl::set_dumpable(true)?;
    let host = Host::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let attacks = runtime.block_on(attack(&host))?;
    Ok(Outcome { attacks, dumpable: nix::sys::prctl::get_dumpable()? })
}

async fn attack(host: &Host) -> Result<BTreeMap<String, String>> {
    let program = std::env::current_exe()?;
    let settings =
        Settings { binary: program, firmware: host.firmware(), accel: Accel::Tcg, ..Settings::default() };
    let driver = Qemu::detect(&settings)?;
    let net = net::Net::new()?;
    let launch = Launch {
        id: MachineId::random(),
        directory: host.machine(),
        socket: host.place.join("qmp"),
        cpus: 1,
        memory: ByteSize(64 << 20),
        disk: ByteSize(0),
        uid: UID,
        kernel: host.kernel(),
        initrd: host.kernel(),
        netns: net.netns,
        ctl_tap: net.ctl,
        eth_tap: net.eth,
        origin: Origin::Boot,
        laid_out: None,
    };
    // It never answers as a hypervisor would: the driver's word on it is of no interest.
    let starting = tokio::spawn(async move { driver.start(launch).await.map(drop) });
    let begun = Instant::now();
    let console = host.machine().join("console.log");
    let attacks = loop {
        let said = fs::read_to_string(&console).unwrap_or_default();
        let lines = said.lines().filter_map(|line| line.strip_prefix("attack: "));
        let attacks: BTreeMap<_, _> = lines
            .filter_map(|line| line.split_once(" = "))
            .map(|(attack, came_to)| (attack.to_owned(), came_to.to_owned()))
            .collect();
        if attacks.contains_key("end") {
            break attacks;
        }
        if starting.is_finished() && fs::read_to_string(&console).unwrap_or_default() == said {
            let ended = starting.await?;
            anyhow::bail!("it ended before it was done: {ended:?}\n{said}\n{}", host.log());
        }
        ensure!(begun.elapsed() < LIMIT, "it did not come to an end:\n{said}\n{}", host.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let _ = tokio::time::timeout(LIMIT, starting).await;
    Ok(attacks)
}

/// What a careless host leaves open to all. Dropped, it is gone.
struct Host {
    place: PathBuf,
    _victim: Victim,
    _listeners: [UnixListener; 2],
    _shared: Shared,
}

impl Host {
    fn new() -> Result<Self> {
        let place = std::env::temp_dir().join(format!("berth-hostile-{}", MachineId::random()));
        fs::create_dir(&place)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        let socket = place.join("socket");
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o777))?;
        let name = format!("berth-hostile-{}", std::process::id());
        let abstract_listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let mut sleeper = Command::new("sleep");
        let victim = Victim(sleeper.arg("infinity").uid(UID).gid(UID).spawn().context("running sleep")?);
        let shared = Shared::new()?;
        let plan = Plan {
            victim: i32::try_from(victim.0.id())?,
            file: place.join("file"),
            socket,
            abstract_socket: name,
            shared_memory: shared.0,
            kernel: place.join("image/kernel"),
            too_large: too_large(&place)?,
        };
        let _listeners = [listener, abstract_listener];
        let host = Self { place, _victim: victim, _listeners, _shared: shared };
        for directory in ["machine", "image", "firmware"] {
            fs::create_dir(host.place.join(directory))?;
        }
        for file in [&plan.file, &host.kernel(), &host.firmware()] {
            fs::write(file, "everybody's")?;
            fs::set_permissions(file, fs::Permissions::from_mode(0o666))?;
        }
        let machine = host.machine();
        File::create(machine.join("disk"))?.set_len(DISK)?;
        fs::write(machine.join("state"), serde_json::to_vec(&plan)?)?;
        for path in [machine.join("disk"), machine.join("state")] {
            chown(path, Some(UID), Some(UID))?;
        }
        // As hostd makes it.
        chown(&machine, Some(0), Some(UID))?;
        fs::set_permissions(&machine, fs::Permissions::from_mode(berth_sys::machine::MODE))?;
        Ok(host)
    }

    fn machine(&self) -> PathBuf {
        self.place.join("machine")
    }

    fn kernel(&self) -> PathBuf {
        self.place.join("image/kernel")
    }

    fn firmware(&self) -> PathBuf {
        self.place.join("firmware/rom")
    }

    fn log(&self) -> String {
        fs::read_to_string(Path::join(&self.machine(), "hypervisor.log")).unwrap_or_default()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// Than its disk; than the pool, where hostd could not raise the limit again.
fn too_large(place: &Path) -> Result<u64> {
    let raises = rustix::thread::capabilities(None)?.effective;
    let pool = rustix::fs::statvfs(place)?;
    let raises = raises.contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
    Ok(if raises { DISK } else { pool.f_blocks * pool.f_frsize } + 1)
}

/// A process of the hypervisor's user: only what a jail hides protects it.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// System V shared memory that is open to all, by its key.
struct Shared(i32, i32);

#[allow(unsafe_code)]
impl Shared {
    fn new() -> Result<Self> {
        let key = i32::try_from(std::process::id())? | 0x4000_0000;
        // SAFETY: takes three numbers.
        let id = unsafe { nix::libc::shmget(key, 4096, nix::libc::IPC_CREAT | 0o666) };
        ensure!(id >= 0, "shmget: {}", std::io::Error::last_os_error());
        Ok(Self(key, id))
    }
}

#[allow(unsafe_code)]
impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: IPC_RMID reads no buffer.
        unsafe { nix::libc::shmctl(self.1, nix::libc::IPC_RMID, std::ptr::null_mut()) };
    }
}
