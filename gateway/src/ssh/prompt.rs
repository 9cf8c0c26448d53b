//! Acknowledging at once while somebody logs in.
//!
//! OpenSSH's client writes twice in a row (its new keys, its wish to log in)
//! before it turns Nagle's algorithm off. So the second waits until the first is
//! acknowledged, and that the kernel puts off for 40 ms, in the hope of having
//! something to say along with it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A login takes about ten. From then on clients do without Nagle.
const READS: u8 = 32;

pub struct Prompt {
    stream: TcpStream,
    /// The kernel forgets the wish with every answer, so it is told again.
    left: u8,
}

impl Prompt {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, left: READS }
    }
}

impl AsyncRead for Prompt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if self.left > 0 {
            self.left -= 1;
            // Without it the client is late, and that is all.
            let _ = self.stream.set_quickack(true);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prompt {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    #[tokio::test]
    async fn an_answer_does_not_make_it_hesitate() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut server = Prompt::new(listener.accept().await.unwrap().0);
        for round in 0..READS {
            client.write_all(b"question").await.unwrap();
            server.read_exact(&mut [0; 8]).await.unwrap();
            assert!(server.stream.quickack().unwrap(), "after {round} rounds");
            server.write_all(b"answer").await.unwrap();
            client.read_exact(&mut [0; 6]).await.unwrap();
        }
        client.write_all(b"question").await.unwrap();
        server.read_exact(&mut [0; 8]).await.unwrap();
        assert!(!server.stream.quickack().unwrap(), "for good");
    }
}
