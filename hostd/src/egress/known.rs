//! What a machine's ssh has to know: the bridge's own key, for exactly the hosts
//! that the bridge logs in to in the machine's place.

use berth_types::egress::{Binding, Host, HostPattern, Projection};

/// Beside the authorities it has to fit into one message to the guest. Hosts beyond
/// it are as unknown as any: ssh asks.
const MOST: usize = 8 << 10;

/// Lines of known_hosts, in an order of their own: told again, they are the same.
pub fn known_hosts<'a>(key: &str, bindings: impl IntoIterator<Item = &'a Binding>) -> String {
    let over_ssh = |binding: &&Binding| {
        binding.projections().iter().any(|projection| matches!(projection, Projection::Ssh { .. }))
    };
    let mut hosts: Vec<String> =
        bindings.into_iter().filter(over_ssh).flat_map(Binding::to).filter_map(names).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut lines = String::new();
    for line in hosts.iter().map(|host| format!("{host} {key}\n")) {
        if lines.len() + line.len() > MOST {
            tracing::warn!(hosts = hosts.len(), "a machine's ssh is not told of all hosts that keys are for");
            break;
        }
        lines.push_str(&line);
    }
    lines
}

/// A rule without a port means the usual one, as it does to the bridge.
fn names(pattern: &HostPattern) -> Option<String> {
    let at_port = |name: String| match pattern.port.unwrap_or(22) {
        22 => name,
        port => format!("[{name}]:{port}"),
    };
    match &pattern.host {
        Host::Name(name) => Some(at_port(name.to_string())),
        // To ssh a star is any number of parts; to us it is one.
        Host::Below(parent) => {
            Some(format!("{},!{}", at_port(format!("*.{parent}")), at_port(format!("*.*.{parent}"))))
        }
        Host::Network(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, process::Command};

    fn binding(to: &[&str], projection: Projection) -> Binding {
        Binding::new(to.iter().map(|to| to.parse().unwrap()).collect(), vec![projection]).unwrap()
    }

    fn over_ssh(to: &[&str]) -> Binding {
        binding(to, Projection::Ssh { user: None, known_hosts: vec!["git.example ssh-ed25519 AAAA".into()] })
    }

    #[test]
    fn only_hosts_that_a_key_is_for() {
        let bindings = [
            over_ssh(&["git.example", "git.example:22", "other.example:2222"]),
            binding(&["api.example"], Projection::Basic { user: "me".into() }),
        ];
        assert_eq!(known_hosts("KEY", &bindings), "[other.example]:2222 KEY\ngit.example KEY\n");
        assert_eq!(known_hosts("KEY", &bindings[1..]), "");
    }

    #[test]
    fn however_many_there_are_they_fit_into_a_message() {
        let hosts: Vec<String> = (0..5_000).map(|number| format!("host{number}.example")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let known = known_hosts("KEY", &[over_ssh(&hosts)]);
        assert!(known.len() <= MOST && known.len() > MOST / 2 && known.ends_with(" KEY\n"));
    }

    #[test]
    fn ssh_reads_a_star_as_the_bridge_does() {
        let key = berth_egress::public_host_key("the authority's").unwrap();
        let path = std::env::temp_dir().join(format!("berth-known-{}", berth_types::UserId::random()));
        fs::write(&path, known_hosts(&key, &[over_ssh(&["*.git.example", "*.git.example:2222"])])).unwrap();
        let is_known = |host: &str| {
            let found = Command::new("ssh-keygen").args(["-F", host, "-f"]).arg(&path).output().unwrap();
            found.status.success()
        };
        assert!(is_known("a.git.example") && is_known("[a.git.example]:2222"));
        for stranger in ["git.example", "a.b.git.example", "[a.b.git.example]:2222", "[a.git.example]:22222"]
        {
            assert!(!is_known(stranger), "{stranger}");
        }
        fs::remove_file(path).unwrap();
    }
}
