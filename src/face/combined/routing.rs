//! Selects the upstream for a client's request.

use std::sync::Arc;

use super::CombinedUpstreams;
use super::lists::MergedList;
use super::member_request::EndpointClient;
use super::merge::is_routed_method;
use super::names::{PrefixPolicy, split};
use crate::dialect::RequestError;
use crate::dialect::fallback_tools::{FallbackTool, FallbackTools};
use crate::face::answer::Addressee;
use crate::face::fallback::{self, FallbackCall, TaskAsker};
use crate::face::http::FaceResponse;
use crate::face::item_refusal::{AskedAccess, no_prompt, no_reference};
use crate::face::served::Served;
use crate::task::{AccessItem, Caller, TaskId};
use crate::wire::envelope::Request;
use crate::wire::{Object, Payload, method};

#[derive(Debug)]
pub(super) enum RequestTarget {
    /// All upstreams contribute to the response.
    List(MergedList),
    /// One upstream, with params in place of the client's if names in them are the endpoint's.
    Member(usize, Option<Payload>),
    /// One of these: they are tried in turn until one knows the item.
    Unlisted(Vec<usize>),
    OwnTool(FallbackTool),
}

const fn item_of(list: MergedList, name: &str) -> AccessItem<'_> {
    match list {
        MergedList::Prompts => AccessItem::Prompt(name),
        MergedList::Tools | MergedList::Resources | MergedList::Templates | MergedList::Tasks => AccessItem::Tool(name),
    }
}

impl CombinedUpstreams {
    /// Fails if the item's name is missing, or belongs to no upstream.
    pub(super) async fn target(
        &self,
        client: &EndpointClient,
        request: &Request,
    ) -> Result<RequestTarget, RequestError> {
        if !is_routed_method(&request.method) {
            return Err(RequestError::UnknownMethod(request.method.clone()));
        }
        if let Some(list) = MergedList::of_offers(&request.method) {
            return Ok(RequestTarget::List(list));
        }
        let params = request.params.object();
        match &*request.method {
            method::TOOLS_CALL => self.named(client, MergedList::Tools, params).await,
            method::PROMPTS_GET => self.named(client, MergedList::Prompts, params).await,
            // Stateless clients name resources in `subscriptions/listen`.
            method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE if client.session.is_none() => {
                Err(RequestError::UnknownMethod(request.method.clone()))
            }
            method::RESOURCES_READ | method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE => {
                let uri = params.and_then(|params| params.get_string("uri"));
                let uri = uri.ok_or_else(|| RequestError::params("uri must be a string"))?;
                Ok(self.at_address(client, &uri).await)
            }
            method::COMPLETE => self.completion(client, params).await,
            method::TASKS_LIST => Ok(RequestTarget::Member(self.any_open(client), None)),
            name if name.starts_with("tasks/") => Ok(RequestTarget::Member(self.of_task(client, params).await, None)),
            _ => Err(RequestError::UnknownMethod(request.method.clone())),
        }
    }

    /// The target of a tool call or a prompt request.
    async fn named(
        &self,
        client: &EndpointClient,
        list: MergedList,
        params: Option<&Object>,
    ) -> Result<RequestTarget, RequestError> {
        let name = params.and_then(|params| params.get_string("name"));
        // An upstream's endpoint returns the usual error.
        let (Some(params), Some(name)) = (params, name) else {
            return Ok(RequestTarget::Member(self.any_open(client), None));
        };
        if let Some(tool) = self.reserved(list, &name) {
            return Ok(RequestTarget::OwnTool(tool));
        }
        let listed = self.owner_of_name(client, list, &name).await;
        let unlisted = || self.upstream_of_unlisted(client, list, &name, params).map(|at| (at, Arc::from(&*name)));
        match listed.or_else(unlisted) {
            // Refused here, the error contains the name that the client used.
            Some((at, own)) if !self.is_withheld(client, at, item_of(list, &own), params) => {
                let edited = (*own != *name).then(|| params.edit().set("name", Payload::text(&own)).finish());
                Ok(RequestTarget::Member(at, edited))
            }
            Some(_) | None if list == MergedList::Tools => Err(RequestError::unknown_tool(Some(params))),
            Some(_) | None => Err(no_prompt()),
        }
    }

    /// The upstream for an unlisted name without prefix: the only one that the caller may use (T-72), or the first
    /// where it lacks a scope, if it may use the name at no other. Of several none: it could run at the wrong one.
    fn upstream_of_unlisted(
        &self,
        client: &EndpointClient,
        list: MergedList,
        name: &str,
        params: &Object,
    ) -> Option<usize> {
        if self.settings.prefix == PrefixPolicy::Always || split(&self.settings.upstreams, name).is_some() {
            return None;
        }
        let item = item_of(list, name);
        let members = || self.members_for(client.caller());
        if members().nth(1).is_none() {
            return members().next();
        }
        let lacks_scope = members().find(|at| self.access_at(client, *at).needs_scopes(item, params));
        if lacks_scope.is_none() {
            // Records a denial once, as an upstream's own path does.
            members().any(|at| self.is_withheld(client, at, item, params));
        }
        lacks_scope.filter(|_| !members().any(|at| self.access_at(client, at).allows(item, params)))
    }

    /// Unprefixed, these names are the gateway's if an upstream has `fallback`: upstreams' own tools have a prefix.
    pub(super) fn reserved(&self, list: MergedList, name: &str) -> Option<FallbackTool> {
        let named = FallbackTool::named(name).filter(|_| list == MergedList::Tools)?;
        self.members.iter().any(|member| member.offers_fallback).then_some(named.tool)
    }

    /// Answers a call of a gateway tool without any upstream.
    pub(super) async fn own_tool(
        &self,
        caller: &Caller,
        tool: FallbackTool,
        request: &Request,
        words: FallbackTools,
        addressee: &Addressee,
    ) -> FaceResponse {
        let Served { engine, settings, .. } = self.common();
        let call = FallbackCall { tool, request, life_signs: settings.life_signs, withdrawn: None };
        let asker = TaskAsker { caller, misses: &self.misses };
        fallback::answer(engine, asker, call, words, addressee.clone()).await
    }

    /// Whether a request gets the answer of an unknown item. The upstream's endpoint asks for missing scopes.
    fn is_withheld(&self, client: &EndpointClient, at: usize, item: AccessItem<'_>, params: &Object) -> bool {
        self.access_at(client, at).withholds(item, params)
    }

    fn access_at<'a>(&'a self, client: &'a EndpointClient, at: usize) -> AskedAccess<'a> {
        AskedAccess::new(&self.common().engine, client.caller(), &self.settings.upstreams[at])
    }

    async fn owner_of_name(&self, client: &EndpointClient, list: MergedList, name: &str) -> Option<(usize, Arc<str>)> {
        if let Some((at, own)) = split(&self.settings.upstreams, name) {
            return self.is_for(at, client.caller()).then(|| (at, Arc::from(own)));
        }
        match self.settings.prefix {
            PrefixPolicy::Always => None,
            PrefixPolicy::Auto => self.owner(client, list, name).await,
        }
    }

    /// An unlisted resource may exist: its upstream is found by trial.
    pub(super) async fn at_address(&self, client: &EndpointClient, uri: &str) -> RequestTarget {
        if let Some((at, _)) = self.owner(client, MergedList::Resources, uri).await {
            return RequestTarget::Member(at, None);
        }
        if let Some(at) = self.template_owner(client, uri).await {
            return RequestTarget::Member(at, None);
        }
        let may_have = |at: &usize| !self.members[*at].lacks("resources", client);
        match self.members_for(client.caller()).filter(may_have).collect::<Vec<_>>() {
            none if none.is_empty() => RequestTarget::Member(self.any_open(client), None),
            some => RequestTarget::Unlisted(some),
        }
    }

    /// The target follows from the prompt or template that the completion refers to.
    async fn completion(
        &self,
        client: &EndpointClient,
        params: Option<&Object>,
    ) -> Result<RequestTarget, RequestError> {
        let reference = params.and_then(|params| Some((params, params.get_object("ref")?)));
        let Some((params, reference)) = reference else {
            return Err(no_reference());
        };
        // Servers read the member that the type names.
        let is_resource = reference.get_str("type").is_some_and(|kind| kind == "ref/resource");
        if let Some(uri) = reference.get_string("uri").filter(|_| is_resource) {
            return Ok(match self.owner(client, MergedList::Templates, &uri).await {
                Some((at, _)) => RequestTarget::Member(at, None),
                None => self.at_address(client, &uri).await,
            });
        }
        let target = self.named(client, MergedList::Prompts, Some(&reference)).await?;
        if let RequestTarget::Member(at, Some(edited)) = target {
            return Ok(RequestTarget::Member(at, Some(params.edit().set("ref", edited).finish())));
        }
        Ok(target)
    }

    /// For an unknown task any upstream returns the right error.
    async fn of_task(&self, client: &EndpointClient, params: Option<&Object>) -> usize {
        let id = params.and_then(|params| params.get_str("taskId")).and_then(|text| TaskId::parse(&text));
        let Some(id) = id else { return self.any_open(client) };
        // The upstream's face answers the request, and records a denial.
        match self.common().engine.get_unaudited(client.caller(), id).await {
            Ok(task) => {
                let at = self.position(&task.origin.upstream, client.caller());
                at.unwrap_or_else(|| self.any_open(client))
            }
            Err(_) => self.any_open(client),
        }
    }

    /// An upstream where the client has a session, so that none need be opened; else the first that it may use.
    pub(super) fn any_open(&self, client: &EndpointClient) -> usize {
        let caller = client.caller();
        let open = client.session.iter().flat_map(|session| session.open_members());
        let mut open = open.filter_map(|(upstream, _)| self.position(&upstream, caller));
        open.next().or_else(|| self.members_for(caller).next()).unwrap_or(0)
    }
}
