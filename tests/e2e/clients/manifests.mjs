// Compares the resources on standard input, a JSON array, with the schemas that the operators publish of their own kinds.
import { readFileSync } from "node:fs";
import { HTTPRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";

const kinds = { HTTPRoute, ServiceMonitor };
for (const resource of JSON.parse(readFileSync(0, "utf8"))) new kinds[resource.kind](resource).validate();
