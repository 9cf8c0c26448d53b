//! The server: answers every request with a few bytes. It and the client do as little
//! as they can, for they share the cores with what is measured.

use crate::{
    client::runtime,
    support::{VALUE, World, authority::Identity},
};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::{
    io::{self, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 46\r\n\r\n\
    {\"object\":\"list\",\"data\":[{\"id\":\"one\"}],\"n\":1}\n";
const REFUSAL: &[u8] = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";

/// Whether a request has to carry the secret says its path.
pub fn answer_all(world: &World, address: &str, identity: &Identity) {
    let acceptor = TlsAcceptor::from(tls(identity));
    let listener = world.servers.listen(address.parse().unwrap());
    let serving = async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let accepting = acceptor.accept(stream);
            // Whoever breaks off has his reasons.
            tokio::spawn(async move { answer(accepting.await?).await });
        }
    };
    std::thread::spawn(|| runtime().block_on(serving));
}

/// One request after the other: the client waits for each answer.
async fn answer(mut stream: TlsStream<tokio::net::TcpStream>) -> io::Result<()> {
    let (mut buffer, mut filled) = ([0u8; 4096], 0);
    loop {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Ok(()),
            count => filled += count,
        }
        let request = &buffer[..filled];
        if request.ends_with(b"\r\n\r\n") {
            let carries = request.windows(VALUE.len()).any(|part| part == VALUE.as_bytes());
            let good = carries || request.starts_with(b"GET /open ");
            stream.write_all(if good { ANSWER } else { REFUSAL }).await?;
            filled = 0;
        }
    }
}

/// Sends so many bytes to whoever connects, over TLS or as they are.
pub fn send_all(world: &World, address: &str, identity: Option<&Identity>, bytes: usize) {
    let config = identity.map(tls);
    serve(world, address, move |mut stream| match config.clone() {
        Some(config) => {
            let connection = ServerConnection::new(config).unwrap();
            let mut tls = StreamOwned::new(connection, stream);
            send(&mut tls, bytes);
            tls.conn.send_close_notify();
            let _ = tls.flush();
        }
        None => send(&mut stream, bytes),
    });
}

/// Whoever hangs up before the end has noticed.
fn send(to: &mut impl Write, bytes: usize) {
    let piece = vec![0u8; 1 << 18];
    let _ = (0..bytes / piece.len()).try_for_each(|_| to.write_all(&piece));
}

fn tls(identity: &Identity) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(identity.chain.clone(), identity.private_key())
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn serve(world: &World, address: &str, work: impl Fn(TcpStream) + Clone + Send + 'static) {
    let listener: TcpListener = world.servers.listen(address.parse().unwrap());
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, work) = (stream.unwrap(), work.clone());
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || work(stream));
        }
    });
}
