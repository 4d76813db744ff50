//! Serves stateless clients (2026-07-28) at an endpoint of several upstreams.

use std::sync::Arc;

use bytes::Bytes;

use super::admission::AnswerScope;
use super::member_answer::MemberRefusal;
use super::member_request::EndpointClient;
use super::routing::RequestTarget;
use super::{CombinedUpstreams, merge, own_stream};
use crate::dialect::RequestError;
use crate::dialect::fallback_tools::FallbackTools;
use crate::dialect::lifecycle::{SessionServerDescription, completed_result, discover_result, own_identity};
use crate::dialect::negotiate::StatelessRequest;
use crate::face::answer::{Addressee, stateless_addressee};
use crate::face::headers;
use crate::face::http::{FaceResponse, Inbound, MessageChannel};
use crate::wire::envelope::Request;
use crate::wire::list_pages::sent_cursor;
use crate::wire::{ProtocolVersion, method};

impl CombinedUpstreams {
    pub(super) async fn serve_stateless(self: &Arc<Self>, inbound: &Inbound, request: Request) -> FaceResponse {
        let addressee = stateless_addressee(inbound, Some(request.id.clone()));
        if let Err(complaint) = check_headers(inbound, &request) {
            return addressee.complaint(&complaint);
        }
        let client = EndpointClient::stateless(self, inbound, request.params.object());
        let asked = match &*request.method {
            method::DISCOVER => self.discover(&client, &addressee).await,
            method::LISTEN => return self.listen(&client, inbound, &request, &addressee).await,
            _ => self.asked_alone(client, request, inbound.body.clone(), &addressee).await,
        };
        asked.unwrap_or_else(|refusal| refusal.into_response(&addressee))
    }

    async fn discover(&self, client: &EndpointClient, addressee: &Addressee) -> Result<FaceResponse, MemberRefusal> {
        let summaries = self.summaries(client).await?;
        let instructions = merge::instructions(summaries.iter().map(|(name, summary)| (&**name, &**summary)));
        let description = SessionServerDescription {
            capabilities: &merge::advertised(summaries.iter().map(|(_, summary)| &summary.capabilities)),
            instructions: instructions.as_ref(),
            server_info: &own_identity(),
        };
        Ok(addressee.result(discover_result(description)))
    }

    async fn asked_alone(
        &self,
        client: EndpointClient,
        request: Request,
        text: Bytes,
        addressee: &Addressee,
    ) -> Result<FaceResponse, MemberRefusal> {
        let target = match self.target(&client, &request).await {
            Ok(target) => target,
            Err(complaint) => return Ok(addressee.complaint(&complaint)),
        };
        if let (RequestTarget::Member(at, _), method::TOOLS_CALL) = (&target, &*request.method) {
            self.check_available(&client, *at).await?;
        }
        match target {
            RequestTarget::List(list) => {
                let cursor = request.params.object().and_then(sent_cursor);
                Ok(match self.page(&client, list, cursor.as_ref()).await? {
                    Ok(page) => addressee.result(completed_result(&request.method, &page, &own_identity())),
                    Err(complaint) => addressee.complaint(&complaint),
                })
            }
            RequestTarget::Member(at, params) => {
                let voice = client.voice(at, AnswerScope::of(&request));
                let principal = client.principal().clone();
                let answer = client.pass(at, request, text, params).await?;
                Ok(own_stream::shown(answer, voice, &principal, addressee).await)
            }
            RequestTarget::OwnTool(tool) => {
                let words = FallbackTools::for_stateless(0, own_identity());
                Ok(self.own_tool(client.caller(), tool, &request, words, addressee).await)
            }
            RequestTarget::Unlisted(some) => self.first_that_knows(&client, &some, &request, addressee).await,
        }
    }
}

/// Checks version (MOD-08) and headers (MOD-04 to MOD-06) before names are edited; the endpoint checks the rest.
fn check_headers(inbound: &Inbound, request: &Request) -> Result<(), RequestError> {
    let params = request.params.object();
    let meta = StatelessRequest::check_shape(params)?;
    let named = StatelessRequest::named_version(&meta);
    let has_headers = inbound.carriage != MessageChannel::Stream;
    if has_headers {
        headers::check_request(&inbound.headers, &named, &request.method)?;
    }
    if ProtocolVersion::parse(&named).is_none_or(|version| !version.is_stateless()) {
        return Err(RequestError::Version { requested: named.into_owned() });
    }
    if !has_headers {
        return Ok(());
    }
    headers::check_name(&inbound.headers, &request.method, headers::named_in(&request.method, params).as_deref())
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::task::{Caller, Principal};
    use crate::wire::meta::{CLIENT_CAPABILITIES, META, PROTOCOL_VERSION};
    use crate::wire::{Message, ScanLimits, envelope};

    /// MOD-08.
    #[test]
    fn a_message_on_a_stream_names_a_version_that_is_served_and_needs_no_header() {
        for (version, expected) in [("2026-07-28", None), ("2025-11-25", Some(-32022)), ("2099-01-01", Some(-32022))] {
            let params = json!({ META: { PROTOCOL_VERSION: version, CLIENT_CAPABILITIES: {} } });
            let text = json!({ "jsonrpc": "2.0", "id": 1, "method": method::DISCOVER, "params": params }).to_string();
            let Ok(Message::Request(request)) = envelope::read(&text.into(), ScanLimits::CLIENT) else {
                panic!("no request")
            };
            let caller = Caller::of(Principal::local());
            let inbound = Inbound { carriage: MessageChannel::Stream, ..Inbound::new(Method::POST, "/mcp", caller) };
            let refused = check_headers(&inbound, &request).err();
            let code = refused.map(|complaint| complaint.to_error(ProtocolVersion::V2026_07_28).code);
            assert_eq!(code, expected, "{version}");
        }
    }
}
