//! A server in the world: HTTPS of both versions, as a handler has it.

use super::{
    authority::{Authority, Identity},
    git,
    world::World,
};
use base64::Engine;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Method, Request, Response, Version,
    body::{Frame, Incoming},
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue,
        LOCATION, UPGRADE,
    },
    server::conn,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    RootCertStore, ServerConfig,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use std::{
    convert::Infallible,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::protocol::{
        Message, Role,
        frame::{
            Frame as WsFrame,
            coding::{Data, OpCode},
        },
    },
};

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What a server was asked.
#[derive(Clone, Debug)]
pub struct Seen {
    pub version: Version,
    pub uri: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub client: Option<Vec<u8>>,
}

#[derive(Clone)]
pub struct Server {
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    repositories: Arc<OnceLock<PathBuf>>,
}

impl Server {
    /// `https://NAME` at `address`, with a good certificate.
    pub fn start(world: &World, name: &str, address: &str) -> Self {
        Self::with(world, address, world.public.identity(name), None)
    }

    pub fn with(world: &World, address: &str, identity: Identity, clients: Option<&Authority>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier: Arc<dyn ClientCertVerifier> = match clients {
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.der()).unwrap();
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                    .build()
                    .unwrap()
            }
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(identity.chain.clone(), identity.private_key())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let server = Self { seen: Arc::default(), connections: Arc::default(), repositories: Arc::default() };
        let listener = world.servers.listen(address.parse().unwrap());
        let accepting = server.clone();
        world.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepting.connections.fetch_add(1, Ordering::Relaxed);
                let (acceptor, server) = (acceptor.clone(), accepting.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let (_, tls) = stream.get_ref();
                    let two = tls.alpn_protocol() == Some(b"h2");
                    let client = tls.peer_certificates().map(|chain| chain[0].to_vec());
                    let service = service_fn(move |request| {
                        let (server, client) = (server.clone(), client.clone());
                        async move { Ok::<_, Infallible>(server.answer(request, client).await) }
                    });
                    let io = TokioIo::new(stream);
                    // A broken connection is the client's business.
                    if two {
                        let _ = conn::http2::Builder::new(TokioExecutor::new())
                            .serve_connection(io, service)
                            .await;
                    } else {
                        let serving = conn::http1::Builder::new().serve_connection(io, service);
                        let _ = serving.with_upgrades().await;
                    }
                });
            }
        });
        server
    }

    /// From now on repositories below this directory are served, with a login.
    pub fn serve_git(&self, root: &Path) {
        self.repositories.set(root.to_owned()).unwrap();
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn last(&self) -> Seen {
        self.seen().pop().expect("the server was asked")
    }

    async fn answer(&self, mut request: Request<Incoming>, client: Option<Vec<u8>>) -> Response<Body> {
        if request.headers().contains_key(UPGRADE) {
            return self.websocket(&mut request);
        }
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let head = parts.method == Method::HEAD;
        if path == "/grpc" {
            self.note(Seen {
                version: parts.version,
                uri: parts.uri.to_string(),
                headers: parts.headers,
                body: Bytes::new(),
                client,
            });
            return stream_back(body);
        }
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let credentials =
            parts.headers.get(AUTHORIZATION).cloned().unwrap_or(HeaderValue::from_static("none"));
        let uri = parts.uri.path_and_query().unwrap().to_string();
        if let Some(root) = self.repositories.get().cloned() {
            self.note(Seen {
                version: parts.version,
                uri: uri.clone(),
                headers: parts.headers.clone(),
                body: body.clone(),
                client,
            });
            let mut response = Response::new(whole(""));
            if parts.headers.contains_key(AUTHORIZATION) {
                let work = move || git::backend(&root, parts.method.as_str(), &uri, &parts.headers, &body);
                let (headers, body) = tokio::task::spawn_blocking(work).await.unwrap();
                for (name, value) in headers {
                    if name == "Status" {
                        *response.status_mut() = value.split(' ').next().unwrap().parse().unwrap();
                    } else {
                        response
                            .headers_mut()
                            .append(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
                    }
                }
                *response.body_mut() = whole(body);
            } else {
                *response.status_mut() = hyper::StatusCode::UNAUTHORIZED;
                response.headers_mut().insert("www-authenticate", HeaderValue::from_static("Basic"));
            }
            return response;
        }
        let told = format!("{} {:?} {}", uri, parts.headers, String::from_utf8_lossy(&body));
        let query = uri.split_once('?').map_or("", |(_, query)| query);
        let named = query.split('&').filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?))
        });
        let named: HeaderMap = named.collect();
        self.note(Seen { version: parts.version, uri, headers: parts.headers, body, client });
        let mut response = Response::new(whole(told.clone()));
        let headers = response.headers_mut();
        match path.as_str() {
            "/header" => {
                headers.insert("x-echo", credentials);
                if head {
                    *response.body_mut() = whole("");
                }
            }
            "/gzip" => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
                gzip.write_all(told.as_bytes()).unwrap();
                let packed = gzip.finish().unwrap();
                headers.insert(CONTENT_LENGTH, packed.len().into());
                *response.body_mut() = whole(packed);
            }
            "/escaped" => *response.body_mut() = whole(told.replace('-', "\\u002d").replace('/', "\\/")),
            "/lines" => {
                let encoded = base64::engine::general_purpose::STANDARD.encode(&told).into_bytes();
                *response.body_mut() = whole(encoded.chunks(19).collect::<Vec<_>>().join(&b"\r\n"[..]));
            }
            "/brotli" => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("br"));
            }
            "/binary" => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
                headers.insert(CONTENT_LENGTH, told.len().into());
            }
            "/pieces" => {
                *response.body_mut() =
                    pieces(told.into_bytes().into_iter().map(|byte| vec![byte]), Duration::ZERO)
            }
            "/events" => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
                let events =
                    (0..3).map(move |number| format!("data: {number} {credentials:?}\n\n").into_bytes());
                *response.body_mut() = pieces(events, Duration::from_millis(400));
            }
            "/redirect" => {
                headers.insert(LOCATION, HeaderValue::from_static("https://other.example/taken"));
                *response.status_mut() = hyper::StatusCode::FOUND;
            }
            // The headers that the query names.
            "/headers" | "/part" => {
                headers.extend(named);
                if path == "/part" {
                    *response.status_mut() = hyper::StatusCode::PARTIAL_CONTENT;
                }
            }
            "/trailers" => *response.body_mut() = frames([Frame::trailers(named)]),
            "/large" => *response.body_mut() = whole(vec![b'x'; 8 << 20]),
            _ => {}
        }
        response
    }

    fn note(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }

    /// A WebSocket that echoes messages, and says the credential when asked to.
    fn websocket(&self, request: &mut Request<Incoming>) -> Response<Body> {
        self.note(Seen {
            version: request.version(),
            uri: request.uri().to_string(),
            headers: request.headers().clone(),
            body: Bytes::new(),
            client: None,
        });
        let key = request.headers()["sec-websocket-key"].as_bytes();
        let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key);
        let credential = request.headers().get(AUTHORIZATION).map_or("", |value| value.to_str().unwrap());
        let credential = credential.to_owned();
        let upgrade = hyper::upgrade::on(&mut *request);
        tokio::spawn(async move {
            let stream = TokioIo::new(upgrade.await.unwrap());
            let socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
            // However it ends, it has ended.
            let _ = converse(socket, &credential).await;
        });
        let mut response = Response::new(whole(""));
        *response.status_mut() = hyper::StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert("sec-websocket-accept", accept.parse().unwrap());
        if request.uri().path() == "/deflate" {
            headers.insert("sec-websocket-extensions", HeaderValue::from_static("permessage-deflate"));
        }
        response
    }
}

async fn converse(
    mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
    credential: &str,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let fragment = |opcode: Data, text: &str, ends: bool| {
        Message::Frame(WsFrame::message(Bytes::copy_from_slice(text.as_bytes()), OpCode::Data(opcode), ends))
    };
    while let Some(message) = socket.next().await {
        let message = message?;
        if !message.is_text() && !message.is_binary() {
            continue;
        }
        match message.to_text()? {
            "text" => socket.send(Message::text(credential)).await?,
            "escaped" => socket.send(Message::text(credential.replace('-', "\\u002d"))).await?,
            "binary" => socket.send(Message::binary(Bytes::copy_from_slice(credential.as_bytes()))).await?,
            "fragments" => {
                let (first, second) = credential.split_at(credential.len() / 2);
                socket.send(fragment(Data::Text, first, false)).await?;
                socket.send(Message::Ping(Bytes::from_static(b"between"))).await?;
                socket.send(fragment(Data::Continue, second, true)).await?;
            }
            "large" => {
                let text = format!("{}{credential}{}", "x".repeat(150_000), "y".repeat(150_000));
                socket.send(Message::text(text)).await?;
            }
            _ => socket.send(message).await?,
        }
    }
    Ok(())
}

fn whole(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into()).boxed_unsync()
}

fn pieces(pieces: impl Iterator<Item = Vec<u8>> + Send + 'static, pause: Duration) -> Body {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        for piece in pieces {
            if sender.send(Frame::data(Bytes::from(piece))).await.is_err() {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    });
    channel(receiver)
}

fn frames<const N: usize>(frames: [Frame<Bytes>; N]) -> Body {
    StreamBody::new(futures_util::stream::iter(frames.map(Ok))).boxed_unsync()
}

/// Every message back as it comes, and a status in the trailers.
fn stream_back(mut body: Incoming) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(data) = frame.into_data()
                && sender.send(Frame::data(data)).await.is_err()
            {
                return;
            }
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let _ = sender.send(Frame::trailers(trailers)).await;
    });
    let mut response = Response::new(channel(receiver));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn channel(receiver: mpsc::Receiver<Frame<Bytes>>) -> Body {
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|frame| (Ok(frame), receiver))
    });
    StreamBody::new(stream).boxed_unsync()
}
