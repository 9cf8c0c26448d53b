//! sftp
pub fn run() -> crate::error::Result<()> {
    Ok(())
}
