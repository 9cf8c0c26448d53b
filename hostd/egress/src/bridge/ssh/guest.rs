//! The guest's side. It needs no key: its link says whose machine it is.

use super::{channel, server::Route};
use crate::bridge::load::Seat;
use russh::{
    Channel, ChannelId,
    server::{self, Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey},
};
use std::sync::Arc;

/// Channels of one connection; git needs one.
const CHANNELS: usize = 16;

pub struct Handler {
    route: Arc<Route>,
    half_open: Option<Seat>,
    user: String,
    channels: Arc<tokio::sync::Semaphore>,
}

impl Handler {
    pub fn new(route: Arc<Route>, half_open: Seat) -> Self {
        let channels = Arc::new(tokio::sync::Semaphore::new(CHANNELS));
        Self { route, half_open: Some(half_open), user: String::new(), channels }
    }

    fn log_in(&mut self, user: &str) -> Auth {
        self.half_open = None;
        user.clone_into(&mut self.user);
        Auth::Accept
    }
}

impl server::Handler for Handler {
    type Error = russh::Error;

    async fn auth_none(&mut self, user: &str) -> Result<Auth, russh::Error> {
        Ok(self.log_in(user))
    }

    async fn auth_publickey_offered(&mut self, _: &str, _: PublicKeyOffer<'_>) -> Result<Auth, russh::Error> {
        Ok(Auth::Accept)
    }

    async fn auth_publickey(&mut self, user: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        Ok(self.log_in(user))
    }

    fn adjust_window(&mut self, _: ChannelId, _: u32) -> u32 {
        self.route.queued.window()
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let Ok(place) = self.channels.clone().try_acquire_owned() else { return Ok(()) };
        reply.accept().await;
        let (route, user, handle) = (self.route.clone(), self.user.clone(), session.handle());
        tokio::spawn(async move {
            channel::serve(route, user, channel, handle).await;
            drop(place);
        });
        Ok(())
    }
}
