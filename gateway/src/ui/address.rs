//! The lines people paste: they must name the right host and port.

/// Where this gateway is reached, as a person types it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// `ssh -p 2222 localhost`
    pub fn lobby(&self) -> String {
        format!("ssh{} {}", self.option("p"), self.host)
    }

    /// `ssh -p 2222 dev@localhost`
    pub fn machine(&self, name: &str) -> String {
        format!("ssh{} {name}@{}", self.option("p"), self.host)
    }

    /// Fills `{ssh}`, `{scp}` and `{host}` of a help text.
    pub fn fill(&self, text: &str) -> String {
        text.replace("{ssh}", &format!("ssh{}", self.option("p")))
            .replace("{scp}", &format!("scp{}", self.option("P")))
            .replace("{host}", &self.host)
    }

    fn option(&self, letter: &str) -> String {
        match self.port {
            22 => String::new(),
            port => format!(" -{letter} {port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_port_is_not_mentioned() {
        assert_eq!(Address::new("box", 22).lobby(), "ssh box");
        assert_eq!(Address::new("box", 2222).machine("dev"), "ssh -p 2222 dev@box");
        assert_eq!(Address::new("box", 2222).fill("{scp} f dev@{host}:"), "scp -P 2222 f dev@box:");
    }
}
