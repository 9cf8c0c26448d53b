//! Files: scp in both of its forms, sftp, rsync, git.

use crate::support::{Key, PATIENCE, Service};
use std::{fs, process::Command};

fn client(service: &Service, key: &Key, program: &str, arguments: &[&str]) {
    let mut command = Command::new("timeout");
    command.args([PATIENCE, program]).args(service.options(key)).args(arguments);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn scp_and_sftp_reach_a_machine_and_the_lobby() {
    let service = Service::start();
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "dev"]);
    let (from, to) = (service.directory.join("from"), service.directory.join("to"));
    let data: Vec<u8> = (0..8_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(&from, &data).unwrap();
    for login in ["dev@127.0.0.1", "127.0.0.1"] {
        for form in [&["-O"][..], &["-s"][..]] {
            let target = format!("{login}:{}", to.display());
            client(&service, &key, "scp", &[form, &[from.to_str().unwrap(), &target]].concat());
            assert!(fs::read(&to).unwrap() == data, "{login} {form:?}");
            fs::remove_file(&to).unwrap();
        }
    }
    let batch = service.directory.join("batch");
    fs::write(&batch, format!("put {} {}\nls -l {}\n", from.display(), to.display(), to.display())).unwrap();
    client(&service, &key, "sftp", &["-b", batch.to_str().unwrap(), "dev@127.0.0.1"]);
    assert!(fs::read(&to).unwrap() == data);
}

#[test]
fn rsync_and_git_reach_the_lobby() {
    let service = Service::start();
    let key = service.key("me");
    let ssh = format!("ssh {}", service.options(&key).join(" "));
    let (from, to) = (service.directory.join("from"), service.directory.join("to"));
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("file"), "text").unwrap();
    let synced = Command::new("timeout")
        .args([PATIENCE, "rsync", "-a", "-e", &ssh])
        .args([format!("{}/", from.display()), format!("127.0.0.1:{}/", to.display())])
        .output()
        .unwrap();
    assert!(synced.status.success(), "{}", String::from_utf8_lossy(&synced.stderr));
    assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "text");

    let bare = service.directory.join("bare.git");
    let git = |arguments: &[&str]| {
        let done = Command::new("timeout")
            .args([PATIENCE, "git", "-c", "safe.directory=*"])
            .args(arguments)
            .env("GIT_SSH_COMMAND", &ssh)
            .output()
            .unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    git(&["init", "-q", "--bare", bare.to_str().unwrap()]);
    let clone = service.directory.join("clone");
    git(&["clone", "-q", &format!("127.0.0.1:{}", bare.display()), clone.to_str().unwrap()]);
}
