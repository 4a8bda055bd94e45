package mcp

// Requests, of all the versions served here and of the tasks extension.
const (
	MethodInitialize            = "initialize"
	MethodPing                  = "ping"
	MethodDiscover              = "server/discover"
	MethodToolsList             = "tools/list"
	MethodToolsCall             = "tools/call"
	MethodPromptsList           = "prompts/list"
	MethodPromptsGet            = "prompts/get"
	MethodResourcesList         = "resources/list"
	MethodResourceTemplatesList = "resources/templates/list"
	MethodResourcesRead         = "resources/read"
	MethodResourcesSubscribe    = "resources/subscribe"
	MethodResourcesUnsubscribe  = "resources/unsubscribe"
	MethodListen                = "subscriptions/listen"
	MethodComplete              = "completion/complete"
	MethodSetLevel              = "logging/setLevel"
	MethodCreateMessage         = "sampling/createMessage"
	MethodElicit                = "elicitation/create"
	MethodRootsList             = "roots/list"
	MethodTasksGet              = "tasks/get"
	MethodTasksUpdate           = "tasks/update"
	MethodTasksCancel           = "tasks/cancel"
	MethodTasksResult           = "tasks/result"
	MethodTasksList             = "tasks/list"
)

// Notifications, likewise.
const (
	NotificationInitialized      = "notifications/initialized"
	NotificationCancelled        = "notifications/cancelled"
	NotificationProgress         = "notifications/progress"
	NotificationMessage          = "notifications/message"
	NotificationToolsChanged     = "notifications/tools/list_changed"
	NotificationPromptsChanged   = "notifications/prompts/list_changed"
	NotificationResourcesChanged = "notifications/resources/list_changed"
	NotificationResourceUpdated  = "notifications/resources/updated"
	NotificationRootsChanged     = "notifications/roots/list_changed"
	NotificationElicitComplete   = "notifications/elicitation/complete"
	NotificationAcknowledged     = "notifications/subscriptions/acknowledged"
	NotificationTasksStatus      = "notifications/tasks/status"
	NotificationTasks            = "notifications/tasks"
)

// methods holds each of them under its own name, to be found by bytes without copying those.
var methods = func() map[string]string {
	m := make(map[string]string)
	for _, name := range []string{
		MethodInitialize, MethodPing, MethodDiscover, MethodToolsList, MethodToolsCall, MethodPromptsList,
		MethodPromptsGet, MethodResourcesList, MethodResourceTemplatesList, MethodResourcesRead,
		MethodResourcesSubscribe, MethodResourcesUnsubscribe, MethodListen, MethodComplete, MethodSetLevel,
		MethodCreateMessage, MethodElicit, MethodRootsList, MethodTasksGet, MethodTasksUpdate, MethodTasksCancel,
		MethodTasksResult, MethodTasksList,
		NotificationInitialized, NotificationCancelled, NotificationProgress, NotificationMessage,
		NotificationToolsChanged, NotificationPromptsChanged, NotificationResourcesChanged,
		NotificationResourceUpdated, NotificationRootsChanged, NotificationElicitComplete, NotificationAcknowledged,
		NotificationTasksStatus, NotificationTasks,
	} {
		m[name] = name
	}
	return m
}()

func internMethod(method []byte) string {
	if known, ok := methods[string(method)]; ok {
		return known
	}
	return string(method)
}

// IsMethod reports whether a version served here, or the tasks extension, has the request or notification.
func IsMethod(name string) bool { return methods[name] != "" }

// removed reports whether 2026-07-28, or the tasks extension for it, took a client's method away.
func removed(method string) bool {
	switch method {
	case MethodInitialize, MethodPing, MethodSetLevel, MethodResourcesSubscribe, MethodResourcesUnsubscribe,
		MethodTasksResult, MethodTasksList,
		NotificationInitialized, NotificationRootsChanged, NotificationTasksStatus:
		return true
	}
	return false
}
