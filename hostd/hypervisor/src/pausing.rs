//! A pause that comes too late is asked for once more before it fails.
//!
//! A hypervisor stops its vCPU threads by signalling them, and gives up if one of
//! them does not answer in time, which a loaded host suffices for. Some of them then
//! stand still and others run. Only another pause leads out of that.

use crate::Error;
use std::path::Path;

/// Pauses, and does so once more if the first one was too late.
pub(crate) async fn twice<F>(
    socket: &Path,
    is_late: fn(&Error) -> bool,
    pause: impl Fn() -> F,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    match pause().await {
        Err(error) if is_late(&error) => {
            tracing::warn!(socket = %socket.display(), %error, "a pause came too late and is tried once more");
            pause().await
        }
        paused => paused,
    }
}

/// Our own limit was reached.
pub(crate) fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Timeout { .. })
}
