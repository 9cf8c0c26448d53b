//! From root to nobody in particular: what needs root comes first, then it is
//! given up for good.

use nix::{
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
    },
    unistd::{Gid, Group, Uid, User, geteuid, setgid, setgroups, setuid},
};

#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error(
        "there is no user '{0}': make it with 'useradd --system --no-create-home --shell /usr/sbin/nologin {0}'"
    )]
    NoUser(String),
    #[error("cannot {what}")]
    Refused {
        what: &'static str,
        #[source]
        source: nix::Error,
    },
}

fn refused(what: &'static str) -> impl FnOnce(nix::Error) -> PrivilegeError {
    move |source| PrivilegeError::Refused { what, source }
}

/// Whom the gateway becomes; `None` when it is unprivileged already.
pub fn unprivileged(name: &str) -> Result<Option<User>, PrivilegeError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let user = User::from_name(name).map_err(refused("look up the gateway's user"))?;
    user.map(Some).ok_or_else(|| PrivilegeError::NoUser(name.to_owned()))
}

/// Every connection and every stream is a descriptor: as many as the kernel
/// allows. No core dumps: they would hold the host keys.
pub fn limits() -> Result<(), PrivilegeError> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).map_err(refused("read the limit of descriptors"))?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).map_err(refused("raise the limit of descriptors"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(refused("forbid core dumps"))?;
    prctl::set_dumpable(false).map_err(refused("forbid tracing"))
}

/// Gives up root for good.
pub fn drop_to(user: &User) -> Result<(), PrivilegeError> {
    prctl::set_no_new_privs().map_err(refused("forbid new privileges"))?;
    let groups: Vec<Gid> = supplementary(user);
    setgroups(&groups).map_err(refused("set the groups"))?;
    setgid(user.gid).map_err(refused("set the group"))?;
    setuid(user.uid).map_err(refused("set the user"))?;
    if setuid(Uid::from_raw(0)).is_ok() {
        return Err(PrivilegeError::Refused { what: "give up root for good", source: nix::Error::EPERM });
    }
    // The kernel clears this when ids change.
    prctl::set_dumpable(false).map_err(refused("forbid tracing"))
}

/// Its own group and nothing else of root's.
fn supplementary(user: &User) -> Vec<Gid> {
    match Group::from_gid(user.gid) {
        Ok(Some(group)) => vec![group.gid],
        _ => vec![user.gid],
    }
}
