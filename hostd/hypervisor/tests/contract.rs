#[path = "support/net.rs"]
mod net;
use berth_hypervisor::{qemu::*, *};
use std::{path::Path, time::*};

#[tokio::test]
async fn smoke() {
    let dir = std::path::PathBuf::from("/work/tmp/hyper/smoke");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let image = Path::new("/var/lib/berth/images/debian");
    std::process::Command::new("cp")
        .arg("--sparse=always")
        .arg(image.join("disk"))
        .arg(dir.join("disk"))
        .status()
        .unwrap();
    std::os::unix::fs::chown(dir.join("disk"), Some(765432), Some(765432)).unwrap();
    let qemu = Qemu::detect(Path::new("qemu-system-x86_64"), Path::new("qboot.rom"), Accel::Auto).unwrap();
    println!("{qemu:?}");
    let net = net::Net::new().unwrap();
    let netns = net.netns.clone();
    let start = Instant::now();
    let id = berth_types::MachineId::random();
    let vm = qemu
        .start(Launch {
            id: id.clone(),
            directory: dir.clone(),
            socket: dir.join("q.sock"),
            cpus: 1,
            memory: berth_types::ByteSize(512 << 20),
            uid: 765432,
            kernel: image.join("vmlinux"),
            initrd: image.join("initrd"),
            netns: net.netns,
            ctl_tap: net.ctl,
            eth_tap: net.eth,
            origin: Origin::Boot,
        })
        .await;
    println!("{:?} {:?}", start.elapsed(), vm.as_ref().err());
    let vm = vm.unwrap();
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        match net::connect(&netns, Duration::from_millis(200)) {
            Ok(_) => {
                println!("answer {:?}", start.elapsed());
                break;
            }
            Err(e) if Instant::now() > limit => {
                println!("no answer {e}");
                break;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    println!("cpu {:?}", vm.cpu_time());
    let known = Known {
        id,
        pid: vm.pid(),
        started: vm.started(),
        directory: dir.clone(),
        socket: dir.join("q.sock"),
    };
    let t = Instant::now();
    vm.pause().await.unwrap();
    println!("pause {:?}", t.elapsed());
    let t = Instant::now();
    println!("save {:?} {:?}", vm.save().await, t.elapsed());
    let t = Instant::now();
    vm.resume().await.unwrap();
    println!("resume {:?}", t.elapsed());
    println!("{}", std::fs::read_to_string(dir.join("console.log")).unwrap());
    vm.kill().await.unwrap();
    println!("{:?}", vm.wait().await);
    println!("{:?}", qemu.adopt(known).await.unwrap().is_none());
    println!("{}", std::fs::read_to_string(dir.join("hypervisor.log")).unwrap());
    println!(
        "{}",
        String::from_utf8_lossy(
            &std::process::Command::new("ls").arg("-las").arg(&dir).output().unwrap().stdout
        )
    );
}
